"""Rosters: who is in the class, and whose a number, a name or a repository is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradebook.intake import doubtful_rows, handed_in, strangers
from gradebook.intake.roster_files import load
from gradebook.roster import CanvasGroup, CanvasId, Entry, MoodleId, Roster, RosterError

CLASSROOM_50 = """username,first_name,last_name,email,section,github_id,role
ada-l,Ada,Lovelace,ada@example.edu,A,1,student
l,Liz,,,A,2,
,Bob,Babbage,bob@example.edu,A,,student
teacher,Grace,Hopper,grace@example.edu,,4,teacher
helper,,,,,5,ta
"""
GITHUB_CLASSROOM = """"identifier","github_username","github_id","name"
"Lovelace, Ada","ada-l","1","Ada Lovelace"
"Babbage, Bob","","",""
"""


def roster(folder: Path, text: str) -> Roster:
    (folder / "roster.csv").write_text(text)
    return load(folder / "roster.csv")


def test_classroom_50s_roster_has_students_and_no_staff(tmp_path: Path) -> None:
    people = roster(tmp_path, CLASSROOM_50)
    assert [(entry.student, entry.name) for entry in people.entries] == [
        ("ada-l", "Ada Lovelace"), ("l", "Liz"), ("bob@example.edu", "Bob Babbage"),
    ]  # fmt: skip


def test_staff_without_a_username_yet_are_no_students_either(tmp_path: Path) -> None:
    invited = ",Tara,Turing,tara@example.edu,,,ta\n,Tim,,,,,teacher\n"
    people = roster(tmp_path, f"{CLASSROOM_50}{invited}")
    assert [entry.student for entry in people.entries] == ["ada-l", "l", "bob@example.edu"]
    outsider = people.outsider(["tara@example.edu"])
    assert outsider is not None
    assert outsider.why == "tara@example.edu is staff (ta) in roster.csv"


def test_roles_in_a_list_of_ones_own_are_not_those_of_staff(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,email,team,role\nada,ada@example.edu,one,tester\n")
    assert [entry.student for entry in people.entries] == ["ada"]


@pytest.mark.parametrize(
    "roles", ["Student,Instructor,TA", "student,ta,Teaching Assistant", "Studierende,Studentische Hilfskraft,Dozent"]
)
def test_a_list_that_says_who_is_a_student_says_who_is_staff(roles: str, tmp_path: Path) -> None:
    """Gradescope's list of a course: staff are no students who handed in nothing."""
    student, *staff = roles.split(",")
    people = roster(
        tmp_path,
        f"First Name,Last Name,SID,Email,Role,Sections\nAda,L,1,a@x.edu,{student},\n"
        f"Pia,P,,p@x.edu,{staff[0]},\nTim,T,3,t@x.edu,{staff[1]},\nZoe,Z,4,z@x.edu,,\n",
    )
    assert [entry.student for entry in people.entries] == ["a@x.edu", "z@x.edu"]
    assert [(outsider.why, outsider.announced) for outsider in people.outsiders] == [
        (f"p@x.edu is staff ({staff[0]}) in roster.csv", True),
        (f"t@x.edu is staff ({staff[1]}) in roster.csv", True),
    ]


def test_a_column_that_has_who_matches_nobody_is_named(tmp_path: Path) -> None:
    people = roster(tmp_path, "Email,Andrew ID,Section\nfz@x.edu,fzeng,A\njr@x.edu,jroe,A\n")
    assert "has that in its column 'Andrew ID', which nothing reads" in strangers.why(people, ["FZENG", "nobody"])
    assert strangers.why(people, ["A", "nobody"]) == "", "what several have says nothing"
    people = roster(tmp_path, "Email,First name,Surname,Full name\na@x.edu,Ada,Lovelace,Ada Lovelace\n")
    assert strangers.why(people, ["Ada", "Lovelace", "Ada Lovelace"]) == "", "names are read"


@pytest.mark.parametrize(("title", "is_named"), [("Team name", True), ("Lab partner", True), ("Section", False)])
def test_a_column_that_may_say_who_works_together_is_not_passed_over(
    title: str, is_named: bool, tmp_path: Path
) -> None:
    people = roster(tmp_path, f"student,{title}\nada,one\nbob,one\n")
    assert people.unused_teams == (title if is_named else None)


def test_its_older_file_without_roles_is_read_as_well(tmp_path: Path) -> None:
    lines = (line.rpartition(",")[0] + "\n" for line in CLASSROOM_50.splitlines())
    assert len(roster(tmp_path, "".join(lines)).entries) == 5


def test_github_classrooms_roster_keeps_who_never_linked_an_account(tmp_path: Path) -> None:
    people = roster(tmp_path, GITHUB_CLASSROOM)
    assert [(entry.student, entry.name) for entry in people.entries] == [
        ("ada-l", "Ada Lovelace"),
        ("Babbage, Bob", ""),
    ]


@pytest.mark.parametrize(
    ("repository", "login"),
    [("gpu-lab1-Ada-L", "ada-l"), ("gpu-lab1-l", "l"), ("ada-l", "ada-l"), ("gpu-lab1-eve", None), ("gpul", None)],
)
def test_a_repository_is_whose_login_ends_its_name(tmp_path: Path, repository: str, login: str | None) -> None:
    people = roster(tmp_path, CLASSROOM_50)
    entry = people.find([repository])
    assert (entry and entry.student) == login
    assert people.identifies([repository]) == (login is not None)


def test_an_identifier_goes_before_the_end_of_a_name(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,username\nx-ada,eve\nbob,ada\n")
    entry = people.find(["x-ada"])
    assert entry is not None
    assert entry.student == "x-ada"


@pytest.mark.parametrize(
    ("repository", "who"),
    [
        ("gpu-lab1-Teacher", "teacher is staff (teacher) in roster.csv"),
        ("helper", "helper is staff (ta) in roster.csv"),
        ("grace@example.edu", "teacher is staff (teacher) in roster.csv"),
        ("gpu-lab1-ada-l", None),
        ("gpu-lab1-eve", None),
    ],
)
def test_a_repository_of_staff_is_nobodys_of_the_class(tmp_path: Path, repository: str, who: str | None) -> None:
    people = roster(tmp_path, CLASSROOM_50)
    outsider = people.outsider([repository])
    assert (outsider and outsider.why) == who
    assert people.identifies([repository]) == (repository == "gpu-lab1-ada-l")


def test_of_a_students_login_and_one_of_staff_the_longer_one_fits(tmp_path: Path) -> None:
    people = roster(tmp_path, "username,role\nx,student\nprof-x,teacher\nmy-prof-x,student\n")
    assert [entry.student for entry in people.owners(["lab1-x"])] == ["x"]
    assert people.owners(["lab1-prof-x"]) == []
    assert [entry.student for entry in people.owners(["lab1-my-prof-x"])] == ["my-prof-x"]


HASH = "0f" * 20
SHARED = "student,name,Email,username,ID\nbob,Ben B,x@uni.example,gh,1\nann,Ann A,X@uni.example,gh,2\n"


@pytest.mark.parametrize("handle", ["x@UNI.example", "gh", "lab1-gh"])
def test_what_two_students_share_is_nobodys_and_names_both(tmp_path: Path, handle: str) -> None:
    people = roster(tmp_path, SHARED)
    assert people.owners([handle]) == []
    assert not people.identifies([handle])
    assert [entry.student for entry in people.several([handle])] == ["bob", "ann"]
    assert [entry.student for entry in people.owners([handle, "Ann A"])] == ["ann"], "the name says who"


def test_two_keys_that_differ_in_case_are_each_their_own(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,name\nCase,One\ncase,Two\n")
    assert [entry.name for key in ("Case", "case", "CASE") for entry in people.owners([key])] == ["One", "Two"]


def test_canvas_may_show_last_and_first_names_in_columns_of_their_own(tmp_path: Path) -> None:
    head = "LastName,FirstName,ID,SIS User ID,SIS Login ID,Section\n"
    lines = f"{head}Lovelace,Ada,101,S1,ada,A\nStudent,Test,9,,{HASH},A\n"
    people = roster(tmp_path, lines)
    assert [(entry.student, entry.name) for entry in people.entries] == [("ada", "Ada Lovelace")]
    assert people.outsiders[0].announced


@pytest.mark.parametrize("title", ["SIS User ID", "ID number", "Student ID", "github_id"])
def test_a_student_in_two_rows_is_refused_and_namesakes_are_not(tmp_path: Path, title: str) -> None:
    head = f"student,name,{title}\n"
    with pytest.raises(RosterError, match=f"lines 2 and 4: one student, by the name and {title} 'S1'; keep one"):
        roster(tmp_path, f"{head}a,Ada L,S1\nb,Bob,S2\na2,Ada L,S1\n")
    rows = "a,Ada L,S1\na2,Ada L,S2\nb,Bob,S1\nc,Cat,-\nc2,Cat,-\n"
    assert len(roster(tmp_path, f"{head}{rows}").entries) == 5


def test_the_address_of_a_table_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="is an address, and only files are read: download it as CSV"):
        load(tmp_path / "https:/docs.example/sheet")


def test_remarks_and_sums_are_no_students(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="line 3: '# left: bob' looks like a remark; remove the row, or the #"):
        roster(tmp_path, "student,name\nada,Ada\n# left: bob,Bob\n")
    for text in ("Total: 60 students", "60 students", "Number of students = 60", "Summe: 60", "Average (of 2) 7.5"):
        people = roster(tmp_path, f"student,name\nada,Ada\n{text},\ncount2,\nnumber,\n")
        assert [entry.student for entry in people.entries] == ["ada", "count2", "number"], text
        assert [outsider.announced for outsider in people.outsiders] == [True]


def test_an_address_with_a_name_is_the_address(tmp_path: Path) -> None:
    (ada,) = roster(tmp_path, 'student,Email\nada,"Lovelace, Ada <a@x.edu>"\n').owners(["A@x.edu"])
    assert ada.columns["Email"] == "a@x.edu"


def test_titles_below_other_lines_are_found(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="line 3 looks like the titles, which must be in the first line: remove what"):
        roster(tmp_path, "GPU computing,,\nspring,,\nstudent,name,Email\nada,Ada,a@x.edu\n")


@pytest.mark.parametrize("titles", ["First name,Last name", "First name,Surname", "first_name,last_name"])
@pytest.mark.parametrize("cells", [",Suharto", "Suharto,", ".,Suharto", "Suharto,-"])
def test_who_has_one_name_only_has_that_one(tmp_path: Path, titles: str, cells: str) -> None:
    people = roster(tmp_path, f"Email,{titles}\ns@x.edu,{cells}\na@x.edu,Ada,Lovelace\n")
    assert [entry.name for entry in people.entries] == ["Suharto", "Ada Lovelace"]
    assert [entry.student for entry in people.owners(["Suharto"])] == ["s@x.edu"]


@pytest.mark.parametrize(
    "cell", ["@ada-l", "https://github.com/ada-l", "github.com/@ada-l/", "http://www.github.com/ada-l"]
)
def test_a_name_on_github_is_read_however_students_typed_it(tmp_path: Path, cell: str) -> None:
    (ada,) = roster(tmp_path, f"student,github_username\nada,{cell}\n").owners(["lab1-ada-l"])
    assert (ada.student, ada.columns["github_username"]) == ("ada", "ada-l")


@pytest.mark.parametrize("row", ['"Ross, Bob",,,,A,', '"Ross, Bob",-,,,A,'])
def test_a_student_without_any_identifier_is_not_passed_over(tmp_path: Path, row: str) -> None:
    with pytest.raises(RosterError, match=r"line 4: 'Ross, Bob' has no identifier; write one into the column"):
        roster(tmp_path, f"{CANVAS}{row}\n")
    assert len(roster(tmp_path, f"{CANVAS},,,,,Manual Posting\n,,,,,\n").entries) == 1


def test_a_row_that_names_nobody_and_says_something_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match=r"line 3: it has 'Eve' and names nobody; write an identifier into the col"):
        roster(tmp_path, "student,Preferred Name,team\nada,Ada,red\n,Eve,\n")
    assert len(roster(tmp_path, "student,Note,Points\nada,,7\n,Average:,7.5\n,,7.5\n").entries) == 1


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Lab (99)
    Points Possible,,,,,20
"Lovelace, Ada",101,S1,ada,A,
"""


@pytest.mark.parametrize(
    "row",
    [
        f'"Student, Test",103,,{HASH},A,',
        f'"Student, Test",103,,{HASH[:6]},A,',
        '"Student, Test",103,,,A,',
        "Test Student,103,,,,7",
    ],
)
def test_canvas_s_test_student_is_no_student(tmp_path: Path, row: str) -> None:
    people = roster(tmp_path, f"{CANVAS}{row}\n")
    assert [entry.student for entry in people.entries] == ["ada"]
    (outsider,) = people.outsiders
    assert outsider.announced
    assert people.outsider(["103"]) is outsider
    assert people.outsider(["lab1-103"]) is None


@pytest.mark.parametrize("row", ['"Student, Test",103,S3,,A,', '"Student, Test",103,,test.student,A,'])
def test_who_is_called_so_and_has_a_login_is_one(tmp_path: Path, row: str) -> None:
    people = roster(tmp_path, f"{CANVAS}{row}\n")
    assert (len(people.entries), people.outsiders) == (2, ())


@pytest.mark.parametrize("line", ["sep=;\r\n", "sep=;\n", '"sep=;"\r\n', "SEP=;\n"])
def test_excels_line_about_separators_is_no_head(tmp_path: Path, line: str) -> None:
    people = roster(tmp_path, f"\ufeff{line}Username;Full name\nada;Ada Lovelace\n")
    assert [(entry.student, entry.name) for entry in people.entries] == [("ada", "Ada Lovelace")]
    with pytest.raises(RosterError, match="lines 3 and 4: Username 'ada' stands twice"):
        roster(tmp_path, f"{line}Username;Full name\nada;Ada Lovelace\nada;Ada\n")


def test_excels_line_is_none_in_a_list_of_teams_either(tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("sep=;\nusername;team;\nada-l;one;\nteacher;one;\neve;one;\n")
    (tmp_path / "roster.csv").write_text(CLASSROOM_50)
    people = load(tmp_path / "roster.csv", tmp_path / "groups.csv")
    assert [entry.team for entry in people.entries] == ["one", "", ""]
    assert people.strangers == ("eve",)


GRADEBOOK = """Student,ID,SIS User ID,SIS Login ID,Section
"Lovelace, Ada",17,S1,ada,A
"Ross, Bob",23,S2,17,A
"""


def test_a_number_of_canvas_is_not_looked_for_among_logins(tmp_path: Path) -> None:
    people = roster(tmp_path, GRADEBOOK)
    by_number, by_login = people.find([CanvasId("17")]), people.find(["17"])
    assert by_number is not None
    assert by_login is not None
    assert (by_number.student, by_login.student) == ("ada", "17")
    assert people.find([CanvasId("99")]) is None


def test_a_list_of_ones_own_may_have_canvass_numbers_in_any_column(tmp_path: Path) -> None:
    entry = roster(tmp_path, "student,name\n17,Ada Lovelace\n").find([CanvasId("17")])
    assert entry is not None
    assert entry.name == "Ada Lovelace"


def test_a_number_of_moodle_is_never_a_teams_name(tmp_path: Path) -> None:
    people = roster(tmp_path, "email,name,team\nada@example.edu,Ada Lovelace,17\nbob@example.edu,Bob Ross,\n")
    assert [entry.student for entry in people.owners([MoodleId("17"), "Bob Ross"])] == ["bob@example.edu"]
    assert [entry.student for entry in people.owners([MoodleId("23"), "17"])] == ["ada@example.edu"]


def test_a_name_that_two_have_says_nothing(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,name\nada,Ada Lovelace\nada2,Ada  Lovelace\nada3,ADA LOVELACE\nbob,Bob_Ross\n")
    assert people.find(["Ada Lovelace"]) is None
    assert [entry.student for entry in people.several(["Ada Lovelace"])] == ["ada", "ada2", "ada3"]
    bob = people.find(["bob ross"])
    assert bob is not None
    assert bob.student == "bob", "Moodle writes _ as a space"


def test_a_group_of_canvas_is_a_team_of_the_list_and_never_a_student(tmp_path: Path) -> None:
    people = roster(tmp_path, "Student,ID,SIS Login ID,team\nAda,17,ada,Group_3\nBob,23,group_4,\n")
    assert [entry.student for entry in people.owners([CanvasId("3"), CanvasGroup("group_3")])] == ["ada"]
    assert people.owners([CanvasId("4"), CanvasGroup("group_4")]) == []


def test_namesakes_in_one_team_are_that_team(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,name,team\n1001,Wei Wang,A\n1002,Wei Wang,A\n1003,Bob,A\n1004,Li,\n")
    assert [entry.student for entry in people.owners(["Wei Wang"])] == ["1001", "1002", "1003"]


def test_a_list_of_teams_that_names_somebody_whose_name_others_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("student,name\na1,Wei Wang\na2,Wei Wang\na3,Bob\n")
    (tmp_path / "teams.csv").write_text("student,team\nWei Wang,T\nBob,T\n")
    with pytest.raises(
        RosterError, match=r"several students are called 'Wei Wang' \(a1, a2\); name them there as here"
    ):
        load(tmp_path / "roster.csv", tmp_path / "teams.csv")


def test_numbers_of_platforms_are_no_names_for_teams_to_clash_with(tmp_path: Path) -> None:
    lines = "Identifier,Full name,team\nParticipant 1,Ada,2\nParticipant 2,Bob,1\n"
    assert roster(tmp_path, lines).team(["2"])[0].name == "Ada"
    with pytest.raises(RosterError, match="the team 'bob' is called as the student y is"):
        roster(tmp_path, "student,name,team\nx,Ada,bob\ny,Bob,\n")


def test_a_team_that_is_called_as_somebody_is_who_is_not_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="the team 'Ada' is called as the student ada is, who is not in it"):
        roster(tmp_path, "student,team\nada,\nbob,Ada\n")
    assert roster(tmp_path, "student,team\nada,Ada\nbob,Ada\n").team(["ada"])


def test_a_student_who_stands_twice_is_found_however_the_key_is_spelt(tmp_path: Path) -> None:
    """Two people whose logins differ in case only have two names."""
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada Lovelace\nADA,ada lovelace\n")
    with pytest.raises(RosterError, match=r"lines 2 and 3: student 'ADA' stands twice, as 'ada'; keep one"):
        load(tmp_path / "roster.csv")
    (tmp_path / "roster.csv").write_text("student,name\nada,Ada Lovelace\nADA,Ada Other\n")
    assert len(load(tmp_path / "roster.csv").entries) == 2


def test_zeros_that_a_spreadsheet_took_are_thought_of(tmp_path: Path) -> None:
    (tmp_path / "roster.csv").write_text("student,team\n7,\n0042,012\n")
    roster = load(tmp_path / "roster.csv")
    assert [strangers.lost_zeros(roster, [text]) for text in ("007", "42", "12", "8", "0", "ada")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


SPELT = """student,name
al001,Ada Lovelace
br_002,Bob O'Ross
x3,Li Wei
x4,Wei Li
x5,Suharto
x6,Anne-Marie Li
zm7,Zoë Müller
"""


@pytest.mark.parametrize(
    ("name", "students"),
    [
        ("Lovelace Ada", "al001"),
        ("Lovelace_Ada_al001_4711", "al001"),  # ILIAS
        ("Lovelace, Ada(al001)", "al001"),  # Sakai
        ("Ada Lovelace - labs", "al001"),  # Google Classroom
        ("Mueller_Zoe_zm7_4712", "zm7"),
        ("Muller_Zoe_zm7_4712", "zm7"),
        ("Mueller_Zoe", ""),
        ("Mueller_Zoe_4712", ""),
        ("Mueller_Zoe_al001_4712", ""),
        ("Muller_Jan_zm7_4712", ""),
        ("O\u2019Ross_Bob_br_002_1", "br_002"),
        ("Anne\u2011Marie Li", "x6"),
        ("Wei Li", "x4"),
        ("Li_Wei_x3_1", "x3"),
        ("Wei_Li_12", ""),
        ("Suharto_x5_1", "x5"),
        ("Suharto 12", ""),
        ("Ada Lovelace - Bob O'Ross", ""),
        ("Lovelace_Ada_x5", ""),
        ("Ada Lovelace final", ""),
        ("al001_lab1", "al001"),
        ("lab 1 br_002", "br_002"),
        ("al001_1", ""),
        ("al001_x3_lab1", ""),
    ],
)
def test_a_name_is_found_next_to_what_says_nothing_else(name: str, students: str, tmp_path: Path) -> None:
    people = roster(tmp_path, SPELT)
    assert " ".join(entry.student for entry in people.owners([name])) == students


def test_a_repository_has_the_former_name_on_github_unless_somebody_has_it_now() -> None:
    ada = Entry("ada", "Ada", {"username": "ada-new"}, None, former=("ada-old", "ada-x"))
    bob = Entry("bob", "Bob", {"username": "ada-x"}, None)
    people = Roster([ada, bob])
    assert [people.owners([name]) for name in ("lab1-ada-old", "lab1-ada-x", "lab1-ada-new")] == [[ada], [bob], [ada]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("ada,Ada,a@x.edu", "stands twice; keep one"),
        ("ada,Ada,b@x.edu", "stands twice, with another email; keep the right one"),
    ],
)
def test_two_rows_of_one_student_are_named_both_with_what_differs(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises(RosterError, match=f"lines 2 and 4: student 'ada' {said}"):
        roster(tmp_path, f"student,name,email\nada,Ada,a@x.edu\nbob,Bob,c@x.edu\n{row}\n")


def test_one_identifier_in_two_rows_of_two_names_names_both(tmp_path: Path) -> None:
    with pytest.raises(RosterError, match="'ada-l' stands twice, for Ada and for Bob: correct the one that is not the"):
        roster(tmp_path, "github_username,name\nada-l,Ada\nada-l,Bob\n")


@pytest.mark.parametrize("text", ['"student,name"\n"ada,Ada"\n', "student   name\nada   Ada\n"])
def test_titles_in_one_cell_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RosterError, match=r"line 1: all titles are in one cell, .*: set cells apart by commas"):
        roster(tmp_path, text)
    assert roster(tmp_path, "student\nada\n").entries


def test_zeros_that_excel_was_made_to_keep_are_kept(tmp_path: Path) -> None:
    people = roster(tmp_path, 'student,name\n"=""00123""",Ada\n="00124",Bob\n\'00125,\'t Hooft\n\'-x,O\'Neil\n')
    assert [entry.student for entry in people.entries] == ["00123", "00124", "00125", "-x"]
    assert [entry.name for entry in people.entries] == ["Ada", "Bob", "'t Hooft", "O'Neil"]
    assert "Move away what is no student's" in strangers.of_submissions(people, ["solution"])


def test_pasted_addresses_are_addresses_and_observers_are_no_students(tmp_path: Path) -> None:
    rows = "student,Email,Enrollment Type\nada,mailto:a@x.edu,StudentEnrollment\nbob,b@x.edu;,StudentEnrollment\n"
    people = roster(tmp_path, f"{rows}obs,o@x.edu,ObserverEnrollment\n")
    assert [entry.columns["Email"] for entry in people.entries] == ["a@x.edu", "b@x.edu"]


def test_teams_that_are_spelt_nearly_the_same_are_named(tmp_path: Path) -> None:
    people = roster(tmp_path, "student,team\na,Team 1\nb,team-1\nc,Team 01\nd,Team 10\ne,Team 1.\nf,team 1\n")
    (said,) = doubtful_rows.notices(people)
    assert "'Team 1' (a, f) and 'team-1' (b) and 'Team 01' (c) and 'Team 1.' (e). If one" in said
    assert doubtful_rows.notices(roster(tmp_path, "student,team\na,Team 1\nb,Team 10\nc,A1\nd,A2\n")) == ()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("C:\\Users\\ada\\all.zip", "That is a path of Windows; in WSL it is called /mnt/c/Users/ada/all.zip"),
        ("all.zip.crdownload", "not downloaded to its end"),
    ],
)
def test_a_download_that_is_not_here_says_why(path: str, message: str) -> None:
    with pytest.raises(handed_in.IntakeError, match=message):
        handed_in.find(Path(path))


def test_a_list_of_repositories_names_students_by_any_column_or_teams(tmp_path: Path) -> None:
    for title in ("team", "Email", "github_username", "Student"):
        address = "student_repository_url" if title == "github_username" else "repository"
        (tmp_path / "list.csv").write_text(f"{title},{address}\nred,https://x.example/red\n")
        assert [thing.key for thing in handed_in.find(tmp_path / "list.csv")] == ["red"]

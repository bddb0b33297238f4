"""Judges what a Dockerfile builds and starts: base image, PyTorch and its CUDA, order of layers, user, command."""

from __future__ import annotations

import posixpath
import re
import shlex

from gradebox.course.criterion import criterion, requires
from gradebox.run.assertions import CheckFailed, require
from gradebox.run.submission import Submission
from grader.container.shared.checks.command import start_instructions
from grader.container.shared.checks.dockerfile import Dockerfile, Instruction, assignments
from grader.container.shared.checks.files import read, requirements_of
from grader.container.shared.checks.ownership import GIVEN_USERS, ROOT, follow
from grader.container.shared.checks.recipe import (
    NVIDIA_CUDA,
    WITH_PYTORCH,
    calls,
    final_user,
    install_texts,
    installs,
    stays,
)
from grader.container.shared.checks.words import commands, options, program

MODELS = "/models"
_INDEX = re.compile(r"download\.pytorch\.org/whl/(?P<name>\w+)")
_OF_AN_INDEX = re.compile(r"INDEX|FIND_LINKS")
"""In names of variables: `PIP_EXTRA_INDEX_URL`, `UV_INDEX`."""
_LOCAL_VERSION = re.compile(r"\btorch==[\d.]+\+(?P<name>\w+)")
_SYSTEM_INSTALLERS = {"apt", "apt-get", "dnf", "microdnf"}
_PYTHON_PACKAGE = re.compile(r"python3?(?:\.\d+)?(?:-[a-z]+)?")
HINT = 'CMD ["python", "train.py"]'
TRAIN_OPTIONS = {"--data-dir", "--model-dir", "--epochs", "--batch-size", "--amp", "--offline"}
"""Of the given train.py; argparse also takes their beginnings."""
_PYTHON = re.compile(r"python3?(?:\.\d+)?")
_PYTHON_SWITCH = re.compile(r"-[uBEIOsSv]+")
_SHELLS = {"sh", "bash", "dash", "ash"}
_INITS = {"tini", "dumb-init", "/nvidia_entrypoint.sh", "/opt/nvidia/nvidia_entrypoint.sh"}
"""They hand signals on, and start what follows."""
_UNHEARD = {"SIGKILL", "KILL", "9"}


@criterion("container.dockerfile")
class TestDockerfile:
    def test_gpu_base_image(self, submission: Submission) -> None:
        require_gpu_base(read(submission))

    @requires("gpu_base_image")
    def test_python_installed(self, submission: Submission) -> None:
        require_python(read(submission))

    @requires("gpu_base_image")
    def test_pytorch_pinned_for_its_cuda(self, submission: Submission) -> None:
        require_pytorch(read(submission), {"requirements.txt": requirements_of(submission)})

    def test_packages_below_the_program(self, submission: Submission) -> None:
        require_order(read(submission))

    def test_directories_made(self, submission: Submission) -> None:
        require_directories(read(submission))

    def test_environment_set(self, submission: Submission) -> None:
        require_environment(read(submission))

    def test_command_trains(self, submission: Submission) -> None:
        require_command(read(submission))

    def test_ordinary_user(self, submission: Submission) -> None:
        require_user(read(submission))


def require_gpu_base(dockerfile: Dockerfile) -> None:
    base = dockerfile.base_image
    named = NVIDIA_CUDA.match(base) or WITH_PYTORCH.match(base)
    require(
        named is not None,
        f"the image is built on {base!r}, expected an image for GPUs with a tag that says its version",
        "nvidia/cuda:VERSION-base-ubuntu24.04, or nvcr.io/nvidia/pytorch:YY.MM-py3",
    )


def require_python(dockerfile: Dockerfile) -> None:
    if WITH_PYTORCH.match(dockerfile.base_image):
        return
    brought = any(stays(run) and _brings_python(run) for run in dockerfile.in_image("RUN"))
    copied = any("--from=" in copy.arguments and "python" in copy.arguments for copy in dockerfile.in_image("COPY"))
    require(
        brought or copied,
        f"{dockerfile.base_image} has no Python, and nothing installs one",
        "RUN apt-get update && apt-get install --yes --no-install-recommends python3 ...",
    )


def _brings_python(run: Instruction) -> bool:
    return any(
        (calls(words, _SYSTEM_INSTALLERS, "install") and any(_PYTHON_PACKAGE.fullmatch(word) for word in words))
        or (calls(words, {"uv"}, "install") and "python" in words)
        for words in commands(run.arguments)
    )


def require_pytorch(dockerfile: Dockerfile, requirements: dict[str, str]) -> None:
    """PyTorch is pinned, and its wheel was made for the CUDA of the base image; `requirements`: file name -> text."""
    texts = install_texts(dockerfile, requirements)
    mentioned = [text for text in texts if re.search(r"(?<![\w-])torch(?![\w-])", re.sub(r"https?://\S+", "", text))]
    if WITH_PYTORCH.match(dockerfile.base_image):
        require(
            not mentioned,
            f"{dockerfile.base_image} holds a PyTorch, and another one is installed over it",
            "that doubles the image and loses NVIDIA's build: leave torch and torchvision out of requirements.txt",
        )
        return
    require(bool(mentioned), "nothing installs torch", "pip install --requirement requirements.txt")
    for package in ("torch", "torchvision"):
        pinned = any(re.search(rf"(?<![\w-]){package}==\d+(?:\.\d+)+(?![\d.]*\*)", text) for text in texts)
        require(pinned, f"{package} is not pinned", f"{package}==X.Y.Z: the same Dockerfile must give the same image")
    indexes = [value for name, value in dockerfile.environment().items() if _OF_AN_INDEX.search(name)] + texts
    wheels = [match["name"] for text in indexes for match in (*_INDEX.finditer(text), *_LOCAL_VERSION.finditer(text))]
    require(
        bool(wheels),
        "nothing says for which CUDA the wheel of torch was made",
        "--extra-index-url https://download.pytorch.org/whl/cuNNN; what PyPI has changes from release to release",
    )
    base = NVIDIA_CUDA.match(dockerfile.base_image)
    cuda = base["cuda"] if base else "13"
    for wheel in wheels:
        require(
            wheel.startswith(f"cu{cuda}"),
            f"torch comes from {wheel!r}, but the base image is {dockerfile.base_image}",
            f"take wheels cu{cuda}N, or a base image of the wheels' CUDA: within one major version they agree",
        )


def require_order(dockerfile: Dockerfile) -> None:
    """In the stage that installs packages, they come before the program."""
    runs = installs(dockerfile)
    require(bool(runs) or bool(WITH_PYTORCH.match(dockerfile.base_image)), "nothing installs the packages")
    program = [copy for copy in dockerfile.anywhere("COPY", "ADD") if _brings_program(copy)]
    require(bool(program), "train.py is not copied into the image", "COPY train.py .")
    for run in runs:
        bound = re.search(r"--mount=\S*type=bind\S*", run.arguments)
        whole = bound is not None and "from=" not in bound[0] and not re.search(r"source=[^,\s]*\w", bound[0])
        require(
            not whole,
            f"line {run.line} installs the packages with the whole folder mounted",
            "the build looks at all that is mounted: a changed train.py installs gigabytes again",
        )
    for stage in dockerfile.stages:
        for copy in program:
            late = [run for run in runs if run in stage.instructions and copy in stage.instructions]
            for run in late:
                require(
                    run.line < copy.line,
                    f"line {copy.line} copies the program before line {run.line} installs the packages",
                    "a changed train.py then installs gigabytes again: copy requirements.txt, install, then copy it",
                )


def _brings_program(copy: Instruction) -> bool:
    return any(source in (".", "./", "*", "*.py", "train.py", "./train.py") for source in copy.words()[:-1])


def require_directories(dockerfile: Dockerfile) -> None:
    require(any(True for _ in dockerfile.in_image("WORKDIR")), "there is no WORKDIR", "WORKDIR /app")
    models = follow(dockerfile, MODELS)
    hint = f"RUN install --directory --owner=USER {MODELS}, before USER and VOLUME: train.py writes there"
    require(models.made, f"nothing makes {MODELS}", hint)
    user = final_user(dockerfile)
    if models.writable_for(user):
        return
    if models.late is not None:
        raise CheckFailed(f"line {models.late} changes {MODELS} after VOLUME: builders may throw that away", hint)
    if models.refused is not None:
        raise CheckFailed(f"line {models.refused} makes or changes {MODELS} as a user who may not", hint)
    raise CheckFailed(
        f"{MODELS} belongs to {models.owner}, and the container runs as {user}: it cannot write there", hint
    )


def require_environment(dockerfile: Dockerfile) -> None:
    values = dockerfile.environment()
    require(
        bool(values.get("PYTHONUNBUFFERED")),
        "PYTHONUNBUFFERED is not set",
        "ENV PYTHONUNBUFFERED=1: else `docker logs` shows nothing until a buffer is full",
    )
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        hidden = name in values and values[name].strip().lower() in ("", "-1", "none", "void")
        require(not hidden, f"{name}={values.get(name)!r} hides every GPU", f"ENV {name}=0, or leave it out")
    handed = values.get("NVIDIA_DRIVER_CAPABILITIES", "all").replace(" ", "").split(",")
    require(
        "all" in handed or {"compute", "utility"} <= set(handed),
        f"NVIDIA_DRIVER_CAPABILITIES={','.join(handed)} asks for less of the driver than train.py needs",
        "compute brings CUDA, utility brings NVML, which reports the utilization; the base image asks for both",
    )


def require_user(dockerfile: Dockerfile) -> None:
    user = final_user(dockerfile)
    name = user.split(":")[0]
    require(name not in ROOT, f"the container runs as {user}", "RUN useradd ..., and at the end USER ...")
    made = follow(dockerfile, MODELS).users
    require(
        name.isdecimal() or name in made or name in GIVEN_USERS,
        f"nothing makes the user {name!r}: the container cannot be started",
        f"RUN useradd --uid 10001 {name}, in the stage that becomes the image",
    )
    program = [copy for copy in dockerfile.in_image("COPY", "ADD") if _brings_program(copy)]
    for copy in program:
        mode = re.search(r"--chmod=0?([0-7])[0-7]([0-7])\b", copy.arguments)
        own = re.search(rf"--chown={re.escape(name)}\b", copy.arguments)
        readable = mode is None or int(mode[1 if own else 2]) & 4
        require(bool(readable), f"line {copy.line} copies train.py so that {name} may not read it", "--chmod=644")
    for run in dockerfile.in_image("RUN"):
        hidden = any("--user" in words for words in commands(run.arguments) if calls(words, {"pip", "pip3"}, "install"))
        require(
            not hidden or _user_at(dockerfile, run) == name,
            f"line {run.line} installs packages into root's home, which {name} may not read",
            "leave --user out, or install as the user that runs the program",
        )


def _user_at(dockerfile: Dockerfile, place: Instruction) -> str:
    """Who runs this instruction of the image."""
    user = "root"
    for instruction in dockerfile.in_image("USER", "RUN"):
        if instruction is place:
            break
        user = instruction.arguments.split(":")[0] if instruction.name == "USER" else user
    return user


def require_command(dockerfile: Dockerfile) -> None:
    """The container's first process is the Python that has the packages, and it gets train.py and signals."""
    words = _first_process(dockerfile)
    while words and posixpath.basename(words[0]) in {posixpath.basename(init) for init in _INITS}:
        words = [word for number, word in enumerate(words[1:]) if number or word != "--"]
    words = _without_shell(words)
    interpreter = words[0] if words else ""
    require(bool(_PYTHON.fullmatch(posixpath.basename(interpreter))), f"the command is {words}", HINT)
    rest = words[1:]
    while rest and _PYTHON_SWITCH.fullmatch(rest[0]):
        rest = rest[1:]
    script = rest[0] if rest else ""
    require(posixpath.basename(script) == "train.py", f"the command is {words}", HINT)
    _require_script(dockerfile, script)
    _require_options(rest[1:])
    _require_interpreter(dockerfile, interpreter)
    for stop in dockerfile.in_image("STOPSIGNAL"):
        heard = stop.arguments.strip().upper() not in _UNHEARD
        require(heard, f"line {stop.line}: nobody hears {stop.arguments}, the training is cut off", "leave it out")


def _first_process(dockerfile: Dockerfile) -> list[str]:
    """The words of ENTRYPOINT and CMD as the engine joins them; both need the form that starts no shell."""
    instructions = start_instructions(dockerfile)
    require(bool(instructions), "the image has no command", HINT)
    words: list[str] = []
    for instruction in instructions:
        listed = instruction.exec_form()
        if listed is None:
            name = instruction.name
            hint = f'{name} ["python", "train.py"]: else a shell is process 1, and hands no signal on'
            raise CheckFailed(f"{name} has the shell form: {instruction.arguments}", hint)
        words += listed
    return words


def _without_shell(words: list[str]) -> list[str]:
    if not words or posixpath.basename(words[0]) not in _SHELLS:
        return words
    line = words[2] if len(words) > 2 and words[1] == "-c" else ""
    try:
        inner = shlex.split(line)
    except ValueError:
        inner = line.split()
    handed = inner[:1] == ["exec"]
    require(handed, f"the command is {words}: a shell is process 1, and hands no signal on", HINT)
    return inner[1:]


def _require_script(dockerfile: Dockerfile, script: str) -> None:
    """The script stands where a COPY put it, seen from the last WORKDIR."""
    at = "/"
    places = []
    whole = False
    for instruction in dockerfile.in_image("WORKDIR", "COPY", "ADD"):
        words = instruction.words()
        if instruction.name == "WORKDIR":
            at = posixpath.join(at, instruction.arguments.strip("\"'"))
            continue
        target = posixpath.join(at, words[-1]) if words else at
        sources = [posixpath.basename(source.rstrip("/")) for source in words[:-1]]
        whole |= "--from=" in instruction.arguments
        folder = words[-1:] != [] and (words[-1].endswith(("/", ".")) or len(sources) > 1 or posixpath.isabs(target))
        names = [target] if target.endswith("train.py") else [posixpath.join(target, "train.py")] if folder else []
        if any(source in ("train.py", "", ".", "*", "*.py") for source in sources):
            places += [posixpath.normpath(name) for name in names]
    path = posixpath.normpath(posixpath.join(at, script))
    # What another stage gathered comes as a folder, whose names this does not follow.
    require(
        path in places or whole,
        f"the command starts {path}, and train.py is at {', '.join(places) or 'no place that COPY names'}",
        "COPY it below the WORKDIR in which the command runs, or name its whole path",
    )


def _require_options(words: list[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("-"):
            value = word.replace(".", "").replace("/", "").isalnum()
            require(value and word != "train.py" and "python" not in word, f"train.py gets {word!r}", HINT)
            continue
        evaluates = len(name) > 3 and "--evaluate".startswith(name)
        require(not evaluates, "the command evaluates a saved model and trains none", HINT)
        known = any(option.startswith(name) for option in TRAIN_OPTIONS) and len(name) > 3
        require(known, f"train.py has no option {word!r}", 'each word by itself: "--epochs", "50"')
    positions = [number for number, word in enumerate(words) if not word.startswith("-")]
    for number in positions:
        takes = number > 0 and words[number - 1].startswith("--") and "=" not in words[number - 1]
        require(takes and words[number - 1] not in ("--amp", "--offline"), f"train.py gets {words[number]!r}", HINT)


def _require_interpreter(dockerfile: Dockerfile, interpreter: str) -> None:
    """Where packages lie in a virtual environment, the command's Python is that one's."""
    environments = set()
    for run in dockerfile.anywhere("RUN"):
        for command in commands(run.arguments):
            words = program(command)
            if "venv" in words[1:] and "install" not in words:
                made = options(words[words.index("venv") + 1 :])[1]
                environments |= {made[-1].rstrip("/")} if made else set()
    if not environments:
        return
    path = ""
    for instruction in dockerfile.in_image("ENV"):
        path = assignments(instruction).get("PATH", path)
    chosen = posixpath.dirname(interpreter)
    places = [chosen] if chosen else path.split(":")
    folders = [f"{environment}/bin" for environment in environments if environment.startswith("/")]
    require(
        not folders or any(place in folders for place in places),
        f"{interpreter} is not the Python of {', '.join(sorted(environments))}, which has the packages",
        f"ENV PATH={sorted(environments)[0]}/bin:$PATH, or name that Python in the command",
    )
    if not chosen:
        kept = "$PATH" in path or "${PATH}" in path or {"/usr/bin", "/bin"} & set(places)
        require(bool(kept), f"PATH is {path}: the system's own programs are gone", f"ENV PATH={places[0]}:$PATH")

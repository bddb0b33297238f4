"""Judges what a Dockerfile says: base image, PyTorch and its CUDA, order of layers, secrets, leftovers."""

from __future__ import annotations

import re

from gradebox.run.assertions import CheckFailed, require
from grader.container.checks.dockerfile import Dockerfile, Instruction, assignments
from grader.container.checks.ownership import GIVEN_USERS, ROOT, follow
from grader.container.checks.words import assigned, commands

NVIDIA_CUDA = re.compile(r"(?:docker\.io/)?(?:nvcr\.io/)?nvidia/cuda:(?P<cuda>\d+)\.\d+")
MODELS = "/models"
WITH_PYTORCH = re.compile(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-|(?:docker\.io/)?pytorch/pytorch:.*cuda")
_INDEX = re.compile(r"download\.pytorch\.org/whl/(?P<name>\w+)")
_LOCAL_VERSION = re.compile(r"\btorch==[\d.]+\+(?P<name>\w+)")
_TORCH_PIN = re.compile(r"(?<![\w-])torch==(?P<version>\d+(?:\.\d+)+)(?![\d.]*\*)")
_REQUIREMENTS = re.compile(r"(?:-r|--requirement)[ =](?P<file>\S+)")
_SYSTEM_INSTALLERS = {"apt", "apt-get", "dnf", "microdnf"}
_PYTHON = re.compile(r"python3?(?:\.\d+)?(?:-[a-z]+)?")
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|hf_\w{20,}|gh[pousr]_\w{20,}|nvapi-[\w-]{20,}|sk-[\w-]{20,})|https?://[^\s/:]+:[^\s/@]+@"
)
_SECRET_FILE = re.compile(r"(?:^|/)(?:\.env|\.netrc|\.npmrc|\.pypirc|id_(?:rsa|ed25519)|kaggle\.json|.*\.pem)$")


def _calls(words: list[str], programs: set[str], verb: str) -> bool:
    """Whether one of these programs is called, wherever it lies, with this word after it."""
    return verb in words and any(word.rpartition("/")[2] in programs for word in words[: words.index(verb)])


def _installs_packages(run: Instruction) -> bool:
    return any(
        _calls(words, {"pip", "pip3"}, "install") or _calls(words, {"uv"}, "sync") for words in commands(run.arguments)
    )


def _brings_python(run: Instruction) -> bool:
    return any(
        (_calls(words, _SYSTEM_INSTALLERS, "install") and any(_PYTHON.fullmatch(word) for word in words))
        or (_calls(words, {"uv"}, "install") and "python" in words)
        for words in commands(run.arguments)
    )


def installs(dockerfile: Dockerfile) -> list[Instruction]:
    """The RUNs of any stage that install Python packages."""
    return [run for run in dockerfile.anywhere("RUN") if _installs_packages(run)]


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
    brought = any(_brings_python(run) for run in dockerfile.in_image("RUN"))
    copied = any("--from=" in copy.arguments and "python" in copy.arguments for copy in dockerfile.in_image("COPY"))
    require(
        brought or copied,
        f"{dockerfile.base_image} has no Python, and nothing installs one",
        "RUN apt-get update && apt-get install --yes --no-install-recommends python3 ...",
    )


def require_pytorch(dockerfile: Dockerfile, requirements: dict[str, str]) -> None:
    """PyTorch is pinned, and its wheel was made for the CUDA of the base image; `requirements`: file name -> text."""
    texts = _install_texts(dockerfile, requirements)
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
    indexes = list(dockerfile.environment().values()) + texts
    wheels = [found["name"] for text in indexes for found in (*_INDEX.finditer(text), *_LOCAL_VERSION.finditer(text))]
    require(
        bool(wheels),
        "nothing says for which CUDA the wheel of torch was made",
        "--extra-index-url https://download.pytorch.org/whl/cuNNN; what PyPI has changes from release to release",
    )
    base = NVIDIA_CUDA.match(dockerfile.base_image)
    wanted = base["cuda"] if base else "13"
    for wheel in wheels:
        require(
            wheel.startswith(f"cu{wanted}"),
            f"torch comes from {wheel!r}, but the base image is {dockerfile.base_image}",
            f"take wheels cu{wanted}N, or a base image of the wheels' CUDA: within one major version they agree",
        )


def pinned_torch(dockerfile: Dockerfile, requirements: dict[str, str]) -> set[str]:
    """The versions that torch is pinned to, without what is behind a `+`; empty if the base image brings torch."""
    texts = _install_texts(dockerfile, requirements)
    return {found["version"] for text in texts for found in _TORCH_PIN.finditer(text)}


def _install_texts(dockerfile: Dockerfile, requirements: dict[str, str]) -> list[str]:
    """The RUNs that install packages, and the files of requirements that they name."""
    runs = installs(dockerfile)
    files = [found["file"].split("/")[-1] for run in runs for found in _REQUIREMENTS.finditer(run.arguments)]
    return [run.arguments for run in runs] + [_without_comments(requirements.get(name, "")) for name in files]


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


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


def final_user(dockerfile: Dockerfile) -> str:
    """As whom the container runs: NAME or NAME:GROUP."""
    users = [user.arguments.strip("\"'") for user in dockerfile.in_image("USER")]
    return users[-1] if users else "root"


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
        "compute brings CUDA, utility brings NVML, which tells the utilization; the base image asks for both",
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
        hidden = any(
            "--user" in words for words in commands(run.arguments) if _calls(words, {"pip", "pip3"}, "install")
        )
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


def require_no_secrets(dockerfile: Dockerfile, context_is_limited: bool) -> None:
    """Nothing secret in ARG, ENV, RUN or copied files: every layer can be read by everyone who has the image."""
    hint = "RUN --mount=type=secret,id=NAME; a layer keeps what a later one deletes"
    for instruction in dockerfile.anywhere("ARG", "ENV"):
        for name, value in assignments(instruction).items():
            require(not (_SECRET_NAME.search(name) and value), f"line {instruction.line} sets {name}", hint)
        for name in instruction.words() if instruction.name == "ARG" else ():
            secret = _SECRET_NAME.search(name.partition("=")[0])
            require(not secret, f"line {instruction.line}: docker history shows what --build-arg gives {name}", hint)
    for run in dockerfile.anywhere("RUN"):
        for words in commands(run.arguments):
            for name, value in assigned(words).items():
                read = value.startswith(("$(", "`"))  # from a file that is mounted for this command
                require(not _SECRET_NAME.search(name) or read or not value, f"line {run.line} writes {name} down", hint)
    for instruction in dockerfile.anywhere("RUN", "ENV", "ARG", "LABEL", "COPY", "ADD"):
        found = _SECRET_VALUE.search(instruction.arguments)
        require(found is None, f"line {instruction.line} holds what looks like a credential", hint)
    for copy in dockerfile.anywhere("COPY", "ADD"):
        for source in copy.words()[:-1]:
            require(_SECRET_FILE.search(source) is None, f"line {copy.line} copies {source} into the image", hint)
            everything = source in (".", "./", "*") and "--from=" not in copy.arguments
            require(
                context_is_limited or not everything,
                f"line {copy.line} copies the whole folder, and no .dockerignore limits it",
                "name the files, or list in .dockerignore what must stay outside",
            )


def require_nothing_left_over(dockerfile: Dockerfile) -> None:
    base = dockerfile.base_image
    require("-devel" not in base, f"the image is built on {base}", "compilers belong into a stage of their own")
    environment: set[str] = set()
    for run in dockerfile.in_image("RUN", "ENV"):
        if run.name == "ENV":  # holds from here on, not for what stands above
            environment |= assignments(run).keys()
            continue
        if "--mount=type=cache" in run.arguments:
            continue
        if any(_calls(words, {"apt", "apt-get"}, "update") for words in commands(run.arguments)):
            clean = _removes(run, "/var/lib/apt/lists", after="update")
            require(clean, f"line {run.line} leaves apt's lists behind", "&& rm -rf /var/lib/apt/lists/* in that RUN")
        if _installs_packages(run) and not environment & {"PIP_NO_CACHE_DIR", "UV_NO_CACHE"}:
            clean = "--no-cache" in run.arguments or _removes(run, "/.cache", after="install")
            require(clean, f"line {run.line} leaves pip's cache behind, as large as the wheels", "pip --no-cache-dir")


def _removes(run: Instruction, path: str, after: str) -> bool:
    """Whether an `rm` of this place comes after the last command with the word `after`, within one RUN."""
    found = commands(run.arguments)
    last = max((number for number, words in enumerate(found) if after in words), default=0)
    return any(words[:1] == ["rm"] and any(path in word for word in words) for words in found[last:])

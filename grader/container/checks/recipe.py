"""Judges what a Dockerfile says: base image, PyTorch and its CUDA, order of layers, secrets, leftovers."""

from __future__ import annotations

import re

from gradebox.assertions import CheckFailed, require
from grader.container.checks.dockerfile import Dockerfile, Instruction, assignments

NVIDIA_CUDA = re.compile(r"(?:docker\.io/)?(?:nvcr\.io/)?nvidia/cuda:(?P<cuda>\d+)\.\d+")
WITH_PYTORCH = re.compile(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-|(?:docker\.io/)?pytorch/pytorch:.*cuda")
_INDEX = re.compile(r"download\.pytorch\.org/whl/(?P<name>\w+)")
_LOCAL_VERSION = re.compile(r"\btorch==[\d.]+\+(?P<name>\w+)")
_REQUIREMENTS = re.compile(r"(?:-r|--requirement)[ =](?P<file>\S+)")
_SYSTEM_INSTALLERS = {"apt", "apt-get", "dnf", "microdnf"}
_PYTHON = re.compile(r"python3?(?:\.\d+)?(?:-[a-z]+)?")
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|hf_\w{20,}|gh[pousr]_\w{20,}|nvapi-[\w-]{20,}|sk-[\w-]{20,})|https?://[^\s/:]+:[^\s/@]+@"
)
_SECRET_FILE = re.compile(r"(?:^|/)(?:\.env|\.netrc|\.npmrc|\.pypirc|id_(?:rsa|ed25519)|kaggle\.json|.*\.pem)$")


def _commands(run: Instruction) -> list[list[str]]:
    """The words of each command that a RUN joins with `&&`, `;` or a pipe."""
    return [command.split() for command in re.split(r"&&|[;|]+", run.arguments)]


def _calls(words: list[str], programs: set[str], verb: str) -> bool:
    """Whether one of these programs is called, wherever it lies, with this word after it."""
    return verb in words and any(word.rpartition("/")[2] in programs for word in words[: words.index(verb)])


def _installs_packages(run: Instruction) -> bool:
    return any(_calls(words, {"pip", "pip3"}, "install") or _calls(words, {"uv"}, "sync") for words in _commands(run))


def _brings_python(run: Instruction) -> bool:
    return any(
        (_calls(words, _SYSTEM_INSTALLERS, "install") and any(_PYTHON.fullmatch(word) for word in words))
        or (_calls(words, {"uv"}, "install") and "python" in words)
        for words in _commands(run)
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
    runs = installs(dockerfile)
    files = [found["file"].split("/")[-1] for run in runs for found in _REQUIREMENTS.finditer(run.arguments)]
    texts = [run.arguments for run in runs] + [_without_comments(requirements.get(name, "")) for name in files]
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
        pinned = any(re.search(rf"(?<![\w-]){package}==\d+\.\d+", text) for text in texts)
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


def _without_comments(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in text.splitlines())


def require_order(dockerfile: Dockerfile) -> None:
    """In the stage that installs packages, they come before the program."""
    runs = installs(dockerfile)
    require(bool(runs) or bool(WITH_PYTORCH.match(dockerfile.base_image)), "nothing installs the packages")
    program = [copy for copy in dockerfile.anywhere("COPY", "ADD") if _brings_program(copy)]
    require(bool(program), "train.py is not copied into the image", "COPY train.py .")
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
    made = any("/models" in made.arguments for made in dockerfile.in_image("RUN", "VOLUME", "WORKDIR"))
    require(made, "nothing makes /models", "RUN install --directory --owner=USER /models: train.py writes there")


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


def require_command(dockerfile: Dockerfile) -> None:
    said = {instruction.name: instruction for instruction in dockerfile.in_image("ENTRYPOINT", "CMD")}
    require(bool(said), "the image has no command", 'CMD ["python", "train.py"]')
    words: list[str] = []
    for name in ("ENTRYPOINT", "CMD"):
        if name in said:
            found = said[name].exec_form()
            if found is None:
                hint = f'{name} ["python", "train.py"]: else a shell is process 1, and hands no signal on'
                raise CheckFailed(f"{name} has the shell form: {said[name].arguments}", hint)
            words += found
    trains = any("python" in word for word in words) and any(word.endswith("train.py") for word in words)
    require(trains, f"the command is {words}", 'CMD ["python", "train.py"]')


def require_user(dockerfile: Dockerfile) -> None:
    users = [user.arguments for user in dockerfile.in_image("USER")]
    ordinary = bool(users) and users[-1].split(":")[0] not in ("root", "0")
    require(
        ordinary, f"the container runs as {users[-1] if users else 'root'}", "RUN useradd ..., and at the end USER ..."
    )


def require_no_secrets(dockerfile: Dockerfile, context_is_limited: bool) -> None:
    """Nothing secret in ARG, ENV, RUN or copied files: every layer can be read by everyone who has the image."""
    hint = "RUN --mount=type=secret,id=NAME; a layer keeps what a later one deletes"
    for instruction in dockerfile.anywhere("ARG", "ENV"):
        for name, value in assignments(instruction).items():
            require(not (_SECRET_NAME.search(name) and value), f"line {instruction.line} sets {name}", hint)
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
    environment = dockerfile.environment()
    for run in dockerfile.in_image("RUN"):
        text = run.arguments
        mounted = "--mount=type=cache" in text
        if not mounted and any(_calls(words, {"apt", "apt-get"}, "install") for words in _commands(run)):
            clean = "/var/lib/apt/lists" in text
            require(clean, f"line {run.line} leaves apt's lists behind", "&& rm -rf /var/lib/apt/lists/* in that RUN")
        kept = not any(name in environment for name in ("PIP_NO_CACHE_DIR", "UV_NO_CACHE"))
        if not mounted and kept and _installs_packages(run):
            clean = "--no-cache" in text
            require(clean, f"line {run.line} leaves pip's cache behind, as large as the wheels", "pip --no-cache-dir")

"""Pack files: versioned YAML beside the code, read into a model with messages that name file, field and reason."""

import re
from importlib.resources import files
from typing import Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from rulegen_dagster.domain.errors import InputError

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


class _Refusal(Protocol):
    def __call__(self, message: str) -> InputError: ...


_Pack = TypeVar("_Pack", bound=BaseModel)


def pack_text(folder: str, name: str, *, kind: str, refused: _Refusal) -> str:
    """Return the text of `<folder>/<name>.yaml` in the package; the error names the packs that there are."""
    there = files("rulegen_dagster") / folder
    pack = there / f"{name}.yaml"
    if not _NAME.fullmatch(name) or not pack.is_file():
        known = sorted(item.name.removesuffix(".yaml") for item in there.iterdir() if item.name.endswith(".yaml"))
        raise refused(f"there is no {kind} {name[:60]!a}; available: {', '.join(known) or 'none'}")
    return pack.read_text(encoding="utf-8")


def read_pack(text: str, model: type[_Pack], *, name: str, refused: _Refusal) -> _Pack:
    """Return the model of a pack's YAML text; `name` is the name of its file, which the pack has to bear itself."""
    # Only whoever makes jobs reads YAML: a job keeps its packs as JSON.
    from rulegen_dagster.rules.pack_yaml import PackYamlError, read_yaml  # noqa: PLC0415

    try:
        value = read_yaml(text)
    except PackYamlError as error:
        raise refused(f"{name}.yaml {error}") from error
    if not isinstance(value, dict):
        fields = [field for field, info in model.model_fields.items() if info.is_required()]
        raise refused(f"{name}.yaml must be a mapping with {', '.join(fields[:-1])} and {fields[-1]}")
    try:
        pack = model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        field = " > ".join(map(str, first["loc"])) or "the pack"
        message = first["msg"].removeprefix("Value error, ")
        raise refused(f"{name}.yaml: {field}: {message}{more}") from error
    named = getattr(pack, "name", name)
    if named != name:
        raise refused(f"{name}.yaml names itself {named}; file and name must agree")
    return pack


def restore_pack(content: str, model: type[_Pack], *, refused: _Refusal) -> _Pack:
    """Return the model of a pack's canonical JSON, as a job froze it."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False, include_context=False, include_input=False)
        field = " > ".join(map(str, first["loc"])) or "the pack"
        raise refused(f"the frozen pack cannot be read by this release: {field}: {first['msg']}") from error

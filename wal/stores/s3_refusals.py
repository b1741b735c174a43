"""Explains S3's refusals to operators: one line with what, where and what to do.

A refusal is an answer that does not change by asking again (`Failure.REFUSED` in
`wal.stores.s3_protocol`), or no request at all for want of credentials. `wal.stores.s3_operations`
puts the line into ObjectStoreRefused.
"""

from collections.abc import Mapping
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

_NO_BUCKET: Final = "create the bucket, or correct the URL of the object store"
_NO_RIGHT: Final = (
    "grant s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject on what "
    "is below its prefix; where objects are encrypted with keys of the key service also "
    "kms:GenerateDataKey and kms:Decrypt on the key"
)
_NO_KEY: Final = (
    "correct s3.sse.kms.key.id, or have the key enabled in the region of the bucket; grant "
    "kms:GenerateDataKey and kms:Decrypt on it"
)
_WRONG_KEY: Final = (
    "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role they come from"
)
_EXPIRED: Final = "renew the credentials: their session is over"
_ELSEWHERE: Final = (
    "the bucket is in another region or at another endpoint: give ?region= or ?endpoint_url= in "
    "the URL of the object store"
)
_LACKING: Final = (
    "the server lacks what a broker needs: conditional puts (If-None-Match), ranges, ListObjectsV2"
)

WHAT_TO_DO: Final[Mapping[str, str]] = {
    "NoSuchBucket": _NO_BUCKET,
    "InvalidBucketName": _NO_BUCKET,
    "AccessDenied": _NO_RIGHT,
    "AllAccessDisabled": _NO_RIGHT,
    "AccountProblem": _NO_RIGHT,
    "403": _NO_RIGHT,
    "SignatureDoesNotMatch": _WRONG_KEY,
    "InvalidAccessKeyId": _WRONG_KEY,
    "InvalidClientTokenId": _WRONG_KEY,
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "KMS.DisabledException": _NO_KEY,
    "KMS.KMSInvalidStateException": _NO_KEY,
    "KMS.NotFoundException": _NO_KEY,
    "kms:KeyNotFound": _NO_KEY,
    "PermanentRedirect": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "IllegalLocationConstraintException": _ELSEWHERE,
    "301": _ELSEWHERE,
    "400": "wrong credentials or a wrong region look like this; S3 gives no reason to a HEAD",
    "NotImplemented": _LACKING,
    "501": _LACKING,
}
"""By S3's error code; the status where an answer has none."""


def explain_refusal(url: str, method: str, key: str | None, cause: BaseException) -> str:
    """One line: which store, what it refuses, S3's code and words, and what to do about it."""
    about = f"{method} of {key}" if key is not None else method
    if isinstance(cause, ClientError):
        error = cause.response.get("Error", {})
        code = str(error.get("Code", "")) or "an error without a code"
        words = " ".join(str(error.get("Message", "")).split())
        said = f"{cause.operation_name} of {key}" if key is not None else cause.operation_name
        reason = f"{said} is refused, {code}" + (f" ({words})" if words else "")
        advice = WHAT_TO_DO.get(code)
    elif isinstance(cause, NoCredentialsError | PartialCredentialsError):
        reason = f"{about} is not possible without credentials"
        advice = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run with an "
            "instance role"
        )
    elif isinstance(cause, NoRegionError):
        reason, advice = f"{about} is not possible without a region", _ELSEWHERE
    else:
        name = type(cause).__name__ if isinstance(cause, BotoCoreError) else repr(cause)
        reason = f"{about} is not possible, {name}: {' '.join(str(cause).split())}"
        advice = "see where the AWS settings get the credentials from"
    return f"object store {url}: {reason}" + (f"; {advice}" if advice else "")

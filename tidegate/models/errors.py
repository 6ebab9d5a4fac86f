"""What can go wrong with a registered model. Each text says what, where, and a way out.

ModelError
├── NameInvalid
├── NameTaken
├── ModelUnknown
├── FolderUnusable        a folder that no worker could load
├── ManifestDamaged
├── DownloadFailed
├── ContentMismatch       a file is not the one that was pinned or hashed
└── GgufUnsupported       a GGUF file that the conversion would get wrong
"""

from __future__ import annotations


class ModelError(Exception):
    """Base; the text is fit for a user."""


class NameInvalid(ModelError):
    pass


class NameTaken(ModelError):
    pass


class ModelUnknown(ModelError):
    pass


class FolderUnusable(ModelError):
    pass


class ManifestDamaged(ModelError):
    pass


class DownloadFailed(ModelError):
    pass


class ContentMismatch(ModelError):
    pass


class GgufUnsupported(ModelError):
    pass

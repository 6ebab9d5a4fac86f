"""What can go wrong with the ledger.

LedgerError
├── LedgerUnavailable     the database does not answer, or can't be written; trying again may help
├── LedgerUnreadable      not a database of ours, or of another version; it is left as it is
├── UrlInvalid            a URL that names no database we can use
├── KeyUnknown            no key has the id
├── KeyUnusable           the key is revoked or expired, so it can't be rotated
├── KeyFieldInvalid       a new key is told something that can't be
├── RevisionMoved         another revision is in force than the sender thinks
├── FilesFull             a tenant keeps more bytes than it may
├── FilterInvalid         a question about calls that has no answer
└── ExportFailed          the file can't be written, or a library for its format is missing
"""

from __future__ import annotations


class LedgerError(Exception):
    pass


class LedgerUnavailable(LedgerError):
    pass


class LedgerUnreadable(LedgerError):
    pass


class UrlInvalid(LedgerError):
    pass


class FilesFull(LedgerError):
    pass


class KeyUnknown(LedgerError):
    pass


class KeyUnusable(LedgerError):
    pass


class KeyFieldInvalid(LedgerError):
    pass


class RevisionMoved(LedgerError):
    pass


class FilterInvalid(LedgerError):
    pass


class ExportFailed(LedgerError):
    pass

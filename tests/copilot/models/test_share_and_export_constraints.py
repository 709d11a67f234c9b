"""What the database itself keeps of shares, exports, imports and erasures (S2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from copilot.chat import sessions
from copilot.files import services as files
from copilot.models import AccountDeletion, ExportJob, ImportRecord, Session, Share, SharedFile, WorkspaceFile
from tests.support import factories

pytestmark = pytest.mark.django_db


def stored() -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name="a.txt", content=b"a", source="upload")


def of_session(session: Session) -> Share:
    return Share.objects.create(kind="conversation", session=session, owner=session.owner, through_sequence=1)


def of_file(file: WorkspaceFile) -> Share:
    return Share.objects.create(kind="file", file=file, owner=file.owner)


def refused(model: type[models.Model], rule: str, **columns: object) -> None:
    with pytest.raises(IntegrityError, match=rule), transaction.atomic():
        model._default_manager.create(**columns)


def test_a_share_is_of_exactly_one_thing() -> None:
    """S2"""
    ada, session, file = factories.ada(), factories.session(), stored()
    rule = "a_share_is_of_one_session_or_one_file"
    refused(Share, rule, owner=ada, kind="conversation", through_sequence=1)
    refused(Share, rule, owner=ada, kind="file", session=session, file=file)
    refused(Share, rule, owner=ada, kind="file", session=session)
    refused(
        Share, "a_shared_conversation_has_a_last_message", owner=ada, kind="conversation", session=session
    )
    refused(
        Share, "a_share_that_ended_says_why", owner=ada, kind="file", file=file, revoked_at=timezone.now()
    )


def test_each_thing_has_at_most_one_active_share() -> None:
    """S2"""
    session, file = factories.session(), stored()
    of_session(session), of_file(file)
    with pytest.raises(IntegrityError, match="one_standing_share_per_session"), transaction.atomic():
        of_session(session)
    with pytest.raises(IntegrityError, match="one_standing_share_per_file"), transaction.atomic():
        of_file(file)
    Share.objects.update(revoked_at=timezone.now(), revoke_reason="revoked")
    of_session(session), of_file(file)


def test_a_deleted_session_takes_its_share_down_and_a_restored_one_does_not_bring_it_back() -> None:
    """S2"""
    session = factories.session()
    share = of_session(session)
    sessions.delete_session(session.owner_id, session.id)
    share.refresh_from_db()
    assert share.revoke_reason == "session_deleted"
    sessions.restore_session(session.owner_id, session.id)
    share.refresh_from_db()
    assert share.revoked_at


@pytest.mark.parametrize("act", [files.trash_file, files.restore_file])
def test_a_file_deleted_or_restored_is_shared_nowhere(act: Callable[[int, object], object]) -> None:
    """S3: restoring too, for a share made while the file was being deleted."""
    file, session = stored(), factories.session()
    if act is files.restore_file:
        files.trash_file(file.owner_id, file.id)
    share, listing = of_file(file), of_session(session)
    SharedFile.objects.create(share=listing, file=file)
    act(file.owner_id, file.id)
    share.refresh_from_db()
    listing.refresh_from_db()
    assert share.revoke_reason == "file_deleted"
    assert listing.revoked_at is None
    assert not SharedFile.objects.exists()


def test_jobs_cannot_be_in_states_that_mean_nothing() -> None:
    """S2, S15–S17"""
    ada, session, soon = factories.ada(), factories.session(), timezone.now() + timedelta(days=7)
    refused(ExportJob, "a_ready_export_can_be_fetched", owner=ada, format="md", state="ready")
    refused(ExportJob, "a_failed_export_says_why", owner=ada, format="md", state="failed")
    ImportRecord.objects.create(owner=ada, sha256="a" * 64, session=session)
    rule = "a_document_is_imported_once_per_account"
    refused(ImportRecord, rule, owner=ada, sha256="a" * 64, session=session)
    AccountDeletion.objects.create(user=ada, due_at=soon, cancelled_at=timezone.now())
    AccountDeletion.objects.create(user=ada, due_at=soon)
    refused(AccountDeletion, "one_pending_deletion_per_account", user=ada, due_at=soon)

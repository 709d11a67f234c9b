"""The pages of files without a browser: who sees what, and where one comes back to (W3, S3)."""

from __future__ import annotations

import pytest
from django.utils import timezone

from copilot.files import services as files
from copilot.models import Share, WorkspaceFile
from copilot.sharing import services as sharing
from tests.support import factories, rest_clients

pytestmark = pytest.mark.django_db


def stored(name: str = "plan.md") -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name=name, content=b"# Plan", source="upload")


def test_the_list_shows_ones_own_files_and_the_use() -> None:
    """W3, S3"""
    stored()
    mine = rest_clients.person(factories.ada()).get("/files/").content.decode()
    assert "plan.md" in mine
    assert "1 file ·" in mine
    assert "plan.md" not in rest_clients.person(factories.bob()).get("/files/").content.decode()


@pytest.mark.parametrize("act", ["", "rename/", "delete/", "restore/", "scan/"])
def test_another_users_file_is_not_found(act: str) -> None:
    """A-S3.1: by every route of the pages"""
    path, bob = f"/files/{stored().pk}/{act}", rest_clients.person(factories.bob())
    response = bob.post(path, {"name": "x"}) if act else bob.get(path)
    assert response.status_code == 404


def test_every_act_leads_back_to_what_was_looked_at() -> None:
    """W3: rename, delete, undo; an address that is no part of the list is left out"""
    ada, file = rest_clients.person(factories.ada()), stored()
    place = {"place": "q=plan&type=text&offset=25&next=//evil.example"}
    renamed = ada.post(f"/files/{file.pk}/rename/", {"name": "new.md", **place})
    assert renamed.url == "/files/?q=plan&type=text&offset=25"
    deleted = ada.post(f"/files/{file.pk}/delete/", place)
    assert deleted.url == f"/files/?q=plan&type=text&offset=25&deleted={file.pk}"
    assert b"Undo" in ada.get(deleted.url).content
    assert ada.post(f"/files/{file.pk}/restore/", {}).url == "/files/"
    assert files.get_file(file.owner_id, file.pk).name == "new.md"


def test_deleting_what_is_shared_says_first_that_the_sharing_ends() -> None:
    """S3, W3: alone or with a conversation; what nobody can open any more is deleted without a word"""
    ada, file = rest_clients.person(factories.ada()), stored()
    assert b"data-confirm" not in ada.get("/files/").content
    share = sharing.publish_file(file.owner_id, file.pk, sharing.ShareTerms())
    page = ada.get("/files/").content.decode()
    assert ">shared<" in page
    assert page.count("Deleting it turns its link off") == 1
    Share.objects.filter(pk=share.pk).update(expires_at=timezone.now())
    assert b"data-confirm" not in ada.get("/files/").content


def test_a_scan_that_was_given_up_can_be_asked_for_again() -> None:
    """S4, W3"""
    ada, file = rest_clients.person(factories.ada()), stored()
    assert b"Scan again" not in ada.get("/files/").content
    WorkspaceFile.objects.update(scan="failed", scan_attempts=4)
    assert b"Scan again" in ada.get("/files/").content
    assert ada.post(f"/files/{file.pk}/scan/", {"place": "q=plan"}).url == "/files/?q=plan"
    assert b"being scanned" in ada.get("/files/").content


@pytest.mark.parametrize(
    "query", ["offset=-1", "offset=99999", "offset=٣", "q=%00", "type=%00", "deleted=x", "offset=1e9"]
)
def test_odd_addresses_are_a_list_too(query: str) -> None:
    stored()
    assert rest_clients.person(factories.ada()).get(f"/files/?{query}").status_code == 200


def test_chosen_files_come_as_one_archive_and_nothing_chosen_comes_back() -> None:
    """S13"""
    ada, ids = rest_clients.person(factories.ada()), [str(stored(name).pk) for name in ("a.txt", "b.txt")]
    packed = ada.post("/files/archive/", {"ids": ids})
    assert packed["Content-Disposition"].startswith("attachment; filename=")
    assert b"".join(packed).startswith(b"PK")
    assert ada.post("/files/archive/", {}).url == "/files/"
    assert rest_clients.person(factories.bob()).post("/files/archive/", {"ids": ids}).url == "/files/"


def test_the_count_of_files_leaves_the_trash_out_and_names_it() -> None:
    kept, gone = stored("kept.md"), stored("gone.md")
    files.trash_file(factories.ada().pk, gone.pk)
    page = rest_clients.person(factories.ada()).get("/files/").content.decode()
    assert "1 file · 1 in the trash ·" in page
    assert kept.name in page

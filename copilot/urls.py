"""Paths of copilot's pages."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.views import (
    account,
    agents,
    archive,
    artifacts,
    chat,
    files,
    keys,
    mcp,
    memories,
    preferences,
    schedules,
    shared,
    shared_links,
)

SHARE = "share/<uuid:token>"

urlpatterns = [
    path("", chat.home, name="home"),
    path("chat/", chat.chat, name="chat"),
    path("chat/archived/", archive.archived, name="archived"),
    path("chat/start/", chat.chat_start, name="chat_start"),
    path("chat/<uuid:session_id>/", chat.chat_session, name="chat_session"),
    path("chat/<uuid:session_id>/send/", chat.chat_send, name="chat_send"),
    path(
        "chat/<uuid:session_id>/messages/<uuid:message_id>/blocks/<int:index>/render",
        artifacts.render_block,
        name="render_block",
    ),
    path("files/", files.listing, name="files"),
    path("files/archive/", files.archive, name="files_archive"),
    path("files/<uuid:file_id>/", files.one, name="file"),
    path("files/<uuid:file_id>/rename/", files.rename, name="file_rename"),
    path("files/<uuid:file_id>/delete/", files.delete, name="file_delete"),
    path("files/<uuid:file_id>/restore/", files.restore, name="file_restore"),
    path("files/<uuid:file_id>/scan/", files.scan, name="file_scan"),
    path("files/<uuid:file_id>/render", artifacts.render_file, name="render_file"),
    path("chat/<uuid:session_id>/bring-back/", archive.bring_back, name="bring_back"),
    path("agents/", agents.agents, name="agents"),
    path("agents/new/", agents.new_agent, name="agent_new"),
    path("agents/<uuid:agent_id>/", agents.agent, name="agent"),
    path("agents/<uuid:agent_id>/run/", agents.run, name="agent_run"),
    path("agents/<uuid:agent_id>/build/", agents.build, name="agent_build"),
    path("agents/<uuid:agent_id>/delete/", agents.delete_agent, name="agent_delete"),
    path("settings/", preferences.settings, name="settings"),
    path("settings/memories/", memories.memories, name="memories"),
    path("settings/memories/switch/", memories.switch_memory, name="memory_switch"),
    path("settings/memories/<uuid:memory_id>/edit/", memories.edit_memory, name="memory_edit"),
    path("settings/memories/<uuid:memory_id>/forget/", memories.forget_memory, name="memory_forget"),
    path("settings/schedules/", schedules.schedules, name="schedules"),
    path(
        "settings/schedules/<uuid:schedule_id>/cancel/",
        schedules.cancel_schedule,
        name="schedule_cancel",
    ),
    path(
        "settings/schedules/<uuid:schedule_id>/on/",
        schedules.switch_schedule_on,
        name="schedule_switch_on",
    ),
    path("settings/tools/", mcp.tools, name="tools"),
    path("settings/mcp/", mcp.servers, name="mcp_servers"),
    path("settings/mcp/<uuid:server_id>/", mcp.change, name="mcp_change"),
    path("settings/mcp/<uuid:server_id>/test/", mcp.test, name="mcp_test"),
    path("settings/mcp/<uuid:server_id>/remove/", mcp.remove, name="mcp_remove"),
    path("settings/account/", account.data, name="account_data"),
    path("settings/account/export/", account.export_everything, name="account_export"),
    path("settings/account/import/", account.import_document, name="account_import"),
    path("settings/account/delete/", account.delete_account, name="account_delete"),
    path("settings/keys/", keys.keys, name="api_keys"),
    path("settings/keys/<uuid:key_id>/revoke/", keys.revoke_key, name="api_key_revoke"),
    path("settings/shares/", shared_links.shared_links, name="shared_links"),
    path("settings/shares/<uuid:share_id>/change/", shared_links.change_share, name="share_change"),
    path("settings/shares/<uuid:share_id>/revoke/", shared_links.revoke_share, name="share_revoke"),
    path(SHARE, shared.share, name="share"),
    path(f"{SHARE}/unlock", shared.unlock, name="share_unlock"),
    path(f"{SHARE}/zip", shared.share_zip, name="share_zip"),
    path(f"{SHARE}/continue", shared.share_continue, name="share_continue"),
    path(f"{SHARE}/files/<uuid:file_id>", shared.share_file, name="share_file"),
    path(f"{SHARE}/files/<uuid:file_id>/render", shared.share_render, name="share_render"),
    re_path(r"^share/", shared.nothing),  # last of its kind: whatever else is asked for there
]

"""Map the URLs of copilot's pages to their views."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.web.views import account, agents, chat, files, mcp_servers, shares

SHARE = "share/<uuid:token>"

urlpatterns = [
    path("", chat.show_home, name="home"),
    path("chat/", chat.show_new_chat, name="chat"),
    path("chat/archived/", chat.list_archived_chats, name="archived"),
    path("chat/trash/", chat.list_deleted_chats, name="trash"),
    path("chat/<uuid:session_id>/restore/", chat.restore_chat, name="chat_restore"),
    path("chat/start/", chat.start_chat, name="chat_start"),
    path("chat/<uuid:session_id>/", chat.show_chat, name="chat_session"),
    path("chat/<uuid:session_id>/send/", chat.send_chat_message, name="chat_send"),
    path(
        "chat/<uuid:session_id>/messages/<uuid:message_id>/blocks/<int:index>/render",
        files.render_block,
        name="render_block",
    ),
    path("files/", files.list_files, name="files"),
    path("files/archive/", files.download_files_zip, name="files_archive"),
    path("files/<uuid:file_id>/", files.show_file, name="file"),
    path("files/<uuid:file_id>/rename/", files.rename_file, name="file_rename"),
    path("files/<uuid:file_id>/delete/", files.delete_file, name="file_delete"),
    path("files/<uuid:file_id>/restore/", files.restore_file, name="file_restore"),
    path("files/<uuid:file_id>/scan/", files.rescan_file, name="file_scan"),
    path("files/<uuid:file_id>/render", files.render_file, name="render_file"),
    path("chat/<uuid:session_id>/bring-back/", chat.unarchive_chat, name="bring_back"),
    path("agents/", agents.list_agents, name="agents"),
    path("agents/new/", agents.create_agent, name="agent_new"),
    path("agents/<uuid:agent_id>/", agents.edit_agent, name="agent"),
    path("agents/<uuid:agent_id>/run/", agents.run_agent, name="agent_run"),
    path("agents/<uuid:agent_id>/build/", agents.open_agent_builder, name="agent_build"),
    path("agents/<uuid:agent_id>/delete/", agents.delete_agent, name="agent_delete"),
    path("settings/", account.edit_preferences, name="settings"),
    path("settings/memories/", account.list_memories, name="memories"),
    path("settings/memories/switch/", account.switch_memory, name="memory_switch"),
    path("settings/memories/<uuid:memory_id>/edit/", account.edit_memory, name="memory_edit"),
    path("settings/memories/<uuid:memory_id>/forget/", account.forget_memory, name="memory_forget"),
    path("settings/schedules/", agents.manage_schedules, name="schedules"),
    path(
        "settings/schedules/<uuid:schedule_id>/cancel/",
        agents.cancel_schedule,
        name="schedule_cancel",
    ),
    path(
        "settings/schedules/<uuid:schedule_id>/on/",
        agents.enable_schedule,
        name="schedule_switch_on",
    ),
    path("settings/tools/", mcp_servers.list_tools, name="tools"),
    path("settings/mcp/", mcp_servers.manage_mcp_servers, name="mcp_servers"),
    path("settings/mcp/<uuid:server_id>/", mcp_servers.change_mcp_server, name="mcp_change"),
    path("settings/mcp/<uuid:server_id>/test/", mcp_servers.check_mcp_server, name="mcp_test"),
    path("settings/mcp/<uuid:server_id>/remove/", mcp_servers.remove_mcp_server, name="mcp_remove"),
    path("invitation/<str:token>/", account.open_invitation, name="invitation"),
    path("settings/account/", account.show_account_data, name="account_data"),
    path("settings/account/export/", account.request_account_export, name="account_export"),
    path("settings/account/import/", account.import_conversation, name="account_import"),
    path("settings/account/delete/", account.delete_account, name="account_delete"),
    path("settings/sessions/end/", account.end_other_login_sessions, name="sessions_end_others"),
    path("settings/sessions/<int:session_id>/end/", account.end_login_session, name="session_end"),
    path("settings/devices/<uuid:device_id>/forget/", account.forget_device, name="device_forget"),
    path("settings/keys/", account.manage_api_keys, name="api_keys"),
    path("settings/keys/revoke-all/", account.revoke_all_api_keys, name="api_keys_revoke_all"),
    path("settings/keys/<uuid:key_id>/revoke/", account.revoke_api_key, name="api_key_revoke"),
    path("settings/shares/", shares.list_shares, name="shared_links"),
    path("settings/shares/<uuid:share_id>/change/", shares.change_share, name="share_change"),
    path("settings/shares/<uuid:share_id>/revoke/", shares.revoke_share, name="share_revoke"),
    path(SHARE, shares.show_share, name="share"),
    path(f"{SHARE}/unlock", shares.unlock_share, name="share_unlock"),
    path(f"{SHARE}/zip", shares.download_share_zip, name="share_zip"),
    path(f"{SHARE}/continue", shares.continue_share, name="share_continue"),
    path(f"{SHARE}/files/<uuid:file_id>", shares.download_share_file, name="share_file"),
    path(f"{SHARE}/files/<uuid:file_id>/render", shares.render_share_file, name="share_render"),
    re_path(r"^share/", shares.show_share_not_found),  # after all other share URLs
]

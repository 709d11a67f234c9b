"""Paths of copilot's pages."""

from __future__ import annotations

from django.urls import path

from copilot import agent_views, mcp_views, memory_views, preference_views, schedule_views, views

urlpatterns = [
    path("", views.home, name="home"),
    path("chat/", views.chat, name="chat"),
    path("chat/start/", views.chat_start, name="chat_start"),
    path("chat/<uuid:session_id>/", views.chat_session, name="chat_session"),
    path("chat/<uuid:session_id>/send/", views.chat_send, name="chat_send"),
    path("agents/", agent_views.agents, name="agents"),
    path("agents/new/", agent_views.new_agent, name="agent_new"),
    path("agents/<uuid:agent_id>/", agent_views.agent, name="agent"),
    path("agents/<uuid:agent_id>/run/", agent_views.run, name="agent_run"),
    path("agents/<uuid:agent_id>/build/", agent_views.build, name="agent_build"),
    path("agents/<uuid:agent_id>/delete/", agent_views.delete_agent, name="agent_delete"),
    path("settings/", preference_views.settings, name="settings"),
    path("settings/memories/", memory_views.memories, name="memories"),
    path("settings/memories/switch/", memory_views.switch_memory, name="memory_switch"),
    path("settings/memories/<uuid:memory_id>/edit/", memory_views.edit_memory, name="memory_edit"),
    path("settings/memories/<uuid:memory_id>/forget/", memory_views.forget_memory, name="memory_forget"),
    path("settings/schedules/", schedule_views.schedules, name="schedules"),
    path(
        "settings/schedules/<uuid:schedule_id>/cancel/",
        schedule_views.cancel_schedule,
        name="schedule_cancel",
    ),
    path(
        "settings/schedules/<uuid:schedule_id>/on/",
        schedule_views.switch_schedule_on,
        name="schedule_switch_on",
    ),
    path("settings/tools/", mcp_views.tools, name="tools"),
    path("settings/mcp/", mcp_views.servers, name="mcp_servers"),
    path("settings/mcp/<uuid:server_id>/", mcp_views.change, name="mcp_change"),
    path("settings/mcp/<uuid:server_id>/test/", mcp_views.test, name="mcp_test"),
    path("settings/mcp/<uuid:server_id>/remove/", mcp_views.remove, name="mcp_remove"),
    path("settings/keys/", views.keys, name="api_keys"),
    path("settings/keys/<uuid:key_id>/revoke/", views.revoke_key, name="api_key_revoke"),
]

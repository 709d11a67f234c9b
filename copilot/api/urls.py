"""Paths under /api/. Ids are canonical lower-case UUIDs; anything that matches no path is a 404."""

from __future__ import annotations

from django.urls import path, re_path

from copilot.api.account import (
    KeysView,
    KeyView,
    MemoriesView,
    MemoryView,
    PersonalitiesView,
    PreferencesView,
    TicketsView,
)
from copilot.api.agents import (
    AgentBuilderView,
    AgentRunsView,
    AgentsView,
    AgentVersionsView,
    AgentView,
    ModelsView,
)
from copilot.api.base import NotFoundView
from copilot.api.exports import (
    ExportDownloadView,
    ExportsView,
    ExportView,
    SessionExportView,
    SessionImportView,
)
from copilot.api.files import (
    DownloadView,
    FileRestoreView,
    FileScanView,
    FilesView,
    FileUsageView,
    FileView,
    ZipView,
)
from copilot.api.messages import (
    MessagesView,
    MoveView,
    QueuedView,
    QueueView,
    SendNowView,
    SideAnswerView,
    SideView,
    StopView,
)
from copilot.api.schedules import SchedulesView, ScheduleSwitchOnView, ScheduleView
from copilot.api.schema_views import SchemaView, SchemaViewerView
from copilot.api.sessions import (
    BranchesView,
    CompactView,
    GoalView,
    SearchView,
    SessionRestoreView,
    SessionsView,
    SessionView,
    UndoView,
)
from copilot.api.shares import (
    FileShareView,
    PublicFileView,
    PublicNotFoundView,
    PublicShareView,
    PublicUnlockView,
    PublicZipView,
    SessionShareView,
    SharePreviewView,
    SharesView,
)
from copilot.api.tools import McpServersView, McpServerTestView, McpServerView, ToolsView
from copilot.api.turns import (
    AnswerView,
    DecideManyView,
    DecideView,
    PendingApprovalsView,
    StreamView,
    ToolCallView,
    TurnView,
    WaitView,
)

SESSION = "v1/sessions/<uuid:session_id>"
QUEUED = f"{SESSION}/queue/<uuid:message_id>"
TURN = "v1/turns/<uuid:turn_id>"
AGENT = "v1/agents/<uuid:agent_id>"
FILE = "v1/files/<uuid:file_id>"
SHARE = "v1/public/shares/<uuid:token>"

urlpatterns = [
    path("v1/search", SearchView.as_view()),
    path("v1/sessions", SessionsView.as_view()),
    path("v1/sessions/import", SessionImportView.as_view()),
    path(SESSION, SessionView.as_view()),
    path(f"{SESSION}/export", SessionExportView.as_view()),
    path(f"{SESSION}/restore", SessionRestoreView.as_view()),
    path(f"{SESSION}/messages", MessagesView.as_view()),
    path(f"{SESSION}/stream", StreamView.as_view()),
    path(f"{SESSION}/stop", StopView.as_view()),
    path(f"{SESSION}/branches", BranchesView.as_view()),
    path(f"{SESSION}/side", SideView.as_view()),
    path(f"{SESSION}/side/<uuid:side_id>", SideAnswerView.as_view()),
    path(f"{SESSION}/goal", GoalView.as_view()),
    path(f"{SESSION}/undo", UndoView.as_view()),
    path(f"{SESSION}/compact", CompactView.as_view()),
    path(f"{SESSION}/queue", QueueView.as_view()),
    path(QUEUED, QueuedView.as_view()),
    path(f"{QUEUED}/send_now", SendNowView.as_view()),
    path(f"{QUEUED}/move", MoveView.as_view()),
    path(TURN, TurnView.as_view()),
    path(f"{TURN}/wait", WaitView.as_view()),
    path(f"{TURN}/tool-calls/<path:call_id>", ToolCallView.as_view()),
    path("v1/approvals", PendingApprovalsView.as_view()),
    path("v1/approvals/decide", DecideManyView.as_view()),
    path("v1/approvals/<uuid:approval_id>/decide", DecideView.as_view()),
    path("v1/questions/<uuid:question_id>/answer", AnswerView.as_view()),
    path("v1/files", FilesView.as_view()),
    path("v1/files/usage", FileUsageView.as_view()),
    path("v1/files/zip", ZipView.as_view()),
    path(FILE, FileView.as_view()),
    path(f"{FILE}/restore", FileRestoreView.as_view()),
    path(f"{FILE}/download", DownloadView.as_view()),
    path(f"{FILE}/scan", FileScanView.as_view()),
    path("v1/exports", ExportsView.as_view()),
    path("v1/exports/<uuid:export_id>", ExportView.as_view()),
    path("v1/exports/<uuid:export_id>/download", ExportDownloadView.as_view()),
    path("v1/shares", SharesView.as_view()),
    path(f"{SESSION}/share", SessionShareView.as_view()),
    path(f"{SESSION}/share/preview", SharePreviewView.as_view()),
    path(f"{FILE}/share", FileShareView.as_view()),
    path(SHARE, PublicShareView.as_view()),
    path(f"{SHARE}/unlock", PublicUnlockView.as_view()),
    path(f"{SHARE}/files/<uuid:file_id>/download", PublicFileView.as_view()),
    path(f"{SHARE}/zip", PublicZipView.as_view()),
    re_path(r"^v1/public/", PublicNotFoundView.as_view()),
    path("v1/memories", MemoriesView.as_view()),
    path("v1/memories/<uuid:memory_id>", MemoryView.as_view()),
    path("v1/schedules", SchedulesView.as_view()),
    path("v1/schedules/<uuid:schedule_id>", ScheduleView.as_view()),
    path("v1/schedules/<uuid:schedule_id>/switch_on", ScheduleSwitchOnView.as_view()),
    path("v1/mcp-servers", McpServersView.as_view()),
    path("v1/mcp-servers/<uuid:server_id>", McpServerView.as_view()),
    path("v1/mcp-servers/<uuid:server_id>/test", McpServerTestView.as_view()),
    path("v1/tools", ToolsView.as_view()),
    path("v1/models", ModelsView.as_view()),
    path("v1/agents", AgentsView.as_view()),
    path(AGENT, AgentView.as_view()),
    path(f"{AGENT}/versions", AgentVersionsView.as_view()),
    path(f"{AGENT}/runs", AgentRunsView.as_view()),
    path(f"{AGENT}/builder", AgentBuilderView.as_view()),
    path("v1/preferences", PreferencesView.as_view()),
    path("v1/personalities", PersonalitiesView.as_view()),
    path("v1/api-keys", KeysView.as_view()),
    path("v1/api-keys/<uuid:key_id>", KeyView.as_view()),
    path("v1/ws-tickets", TicketsView.as_view()),
    path("schema", SchemaView.as_view(), name="api-schema"),
    path("docs", SchemaViewerView.as_view(), name="api-docs"),
    re_path(r"", NotFoundView.as_view()),  # last: other apps' paths under /api/ are included before these
]

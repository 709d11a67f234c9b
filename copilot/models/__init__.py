"""Define copilot's tables and the constraints that the database enforces.

A turn updates its session, its own row and its messages several times, and each update writes every index again. So a
foreign key has an index of its own only where no other index begins with it, and then only for rows that have a value.
"""

from copilot.models.account import (
    ApiKey,
    Invitation,
    KnownDevice,
    Preferences,
    SignUpRequest,
)
from copilot.models.agent import (
    Agent,
    AgentVersion,
    Personality,
)
from copilot.models.approval import Approval, Question
from copilot.models.catalogue import (
    Credential,
    ModelEntry,
    ModelLesson,
    TierEntry,
)
from copilot.models.data_jobs import (
    AccountDeletion,
    ExportJob,
    ImportRecord,
)
from copilot.models.file import (
    StorageUse,
    WorkspaceFile,
)
from copilot.models.mcp_server import McpServer
from copilot.models.memory import (
    MemoryItem,
    MemoryPreference,
)
from copilot.models.message import (
    Message,
    SearchEntry,
    SearchProgress,
)
from copilot.models.model_call import ModelCall
from copilot.models.owed_result import OwedResult
from copilot.models.schedule import (
    Schedule,
    ScheduleRun,
)
from copilot.models.session import Session
from copilot.models.share import (
    Share,
    SharedFile,
)
from copilot.models.turn import Turn
from copilot.models.worker import Installation, WorkerHeartbeat

__all__ = [
    "AccountDeletion",
    "Agent",
    "AgentVersion",
    "ApiKey",
    "Approval",
    "Credential",
    "ExportJob",
    "ImportRecord",
    "Installation",
    "Invitation",
    "KnownDevice",
    "McpServer",
    "MemoryItem",
    "MemoryPreference",
    "Message",
    "ModelCall",
    "ModelEntry",
    "ModelLesson",
    "OwedResult",
    "Personality",
    "Preferences",
    "Question",
    "Schedule",
    "ScheduleRun",
    "SearchEntry",
    "SearchProgress",
    "Session",
    "Share",
    "SharedFile",
    "SignUpRequest",
    "StorageUse",
    "TierEntry",
    "Turn",
    "WorkerHeartbeat",
    "WorkspaceFile",
]

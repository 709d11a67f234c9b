"""Tables, and the rules the database itself keeps; by idea, one module each."""

from copilot.models.agents import Agent, AgentVersion, McpServer, Personality, Schedule, ScheduleRun
from copilot.models.catalogue import Credential, ModelEntry, ModelLesson, TierEntry
from copilot.models.conversations import Message, Session, Turn
from copilot.models.files import StorageUse, WorkspaceFile
from copilot.models.moving import ErasureJob, ExportJob, ImportRecord
from copilot.models.people import (
    ApiKey,
    Invitation,
    KnownDevice,
    MemoryItem,
    MemorySwitch,
    Preferences,
    SignUpRequest,
)
from copilot.models.search import SearchEntry, SearchProgress
from copilot.models.sharing import Share, SharedFile
from copilot.models.work import Approval, ModelCall, Question
from copilot.models.workers import Installation, WorkerBeat

__all__ = [
    "Agent",
    "AgentVersion",
    "ApiKey",
    "Approval",
    "Credential",
    "ErasureJob",
    "ExportJob",
    "ImportRecord",
    "Installation",
    "Invitation",
    "KnownDevice",
    "McpServer",
    "MemoryItem",
    "MemorySwitch",
    "Message",
    "ModelCall",
    "ModelEntry",
    "ModelLesson",
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
    "WorkerBeat",
    "WorkspaceFile",
]

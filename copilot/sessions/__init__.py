"""Conversations: the only writer of Session, but for what a turn's statement sets (fence, title, a paused goal) and
what approvals count.
"""

from __future__ import annotations

from copilot.sessions.goals import (
    GOAL_CHARACTERS as GOAL_CHARACTERS,
)
from copilot.sessions.goals import (
    clear_goal as clear_goal,
)
from copilot.sessions.goals import (
    goal_continued as goal_continued,
)
from copilot.sessions.goals import (
    goal_judged as goal_judged,
)
from copilot.sessions.goals import (
    pause_goal as pause_goal,
)
from copilot.sessions.goals import (
    resume_goal as resume_goal,
)
from copilot.sessions.goals import (
    set_goal as set_goal,
)
from copilot.sessions.keeping import (
    Shape as Shape,
)
from copilot.sessions.keeping import (
    begun as begun,
)
from copilot.sessions.keeping import (
    builder as builder,
)
from copilot.sessions.keeping import (
    create as create,
)
from copilot.sessions.keeping import (
    create_child as create_child,
)
from copilot.sessions.keeping import (
    create_imported as create_imported,
)
from copilot.sessions.keeping import (
    create_quietly as create_quietly,
)
from copilot.sessions.keeping import (
    create_unlisted as create_unlisted,
)
from copilot.sessions.keeping import (
    delete as delete,
)
from copilot.sessions.keeping import (
    forget as forget,
)
from copilot.sessions.keeping import (
    list_after_all as list_after_all,
)
from copilot.sessions.keeping import (
    name_automatically as name_automatically,
)
from copilot.sessions.keeping import (
    purgeable as purgeable,
)
from copilot.sessions.keeping import (
    restore as restore,
)
from copilot.sessions.keeping import (
    set_todos as set_todos,
)
from copilot.sessions.keeping import (
    shape as shape,
)
from copilot.sessions.keeping import (
    update as update,
)
from copilot.sessions.telling import (
    Untold as Untold,
)
from copilot.sessions.telling import (
    note_told as note_told,
)
from copilot.sessions.telling import (
    note_untold as note_untold,
)
from copilot.sessions.telling import (
    publish_change as publish_change,
)
from copilot.sessions.telling import (
    tell as tell,
)
from copilot.sessions.telling import (
    untold as untold,
)

"""Template tag that includes one row of a transcript, so that a row that fails does not take its page down."""

from __future__ import annotations

from django import template
from django.template.base import FilterExpression, Parser, Token
from django.template.context import Context
from django.template.loader_tags import IncludeNode
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from copilot import metrics
from copilot.web import markdown

register = template.Library()


class RowNode(IncludeNode):
    """Include `item.template`, or show a notice in its place and report the error."""

    def __init__(self, item: FilterExpression, path: FilterExpression) -> None:
        super().__init__(path)
        self._item = item

    def render(self, context: Context) -> SafeString:
        try:
            return super().render(context)
        except Exception as problem:  # noqa: BLE001 - the other rows are shown whatever is wrong with one
            markdown.report_failure("row_failed", problem)
            metrics.unrendered_texts.labels(reason="row_failed").inc()
            item = self._item.resolve(context)
            notice = _("This message can't be shown.")
            return format_html(
                '<li class="row answer"><p class="missing">{}</p><div class="prose">{}</div></li>',
                notice,
                getattr(item, "html", ""),
            )


@register.tag
def include_row(parser: Parser, token: Token) -> RowNode:
    """Parse `{% include_row item %}`; the template sees the item under the same name."""
    _tag, name = token.split_contents()
    return RowNode(parser.compile_filter(name), parser.compile_filter(f"{name}.template"))

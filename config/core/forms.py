"""Base class for the forms of pages: every error is shown at its field, also those that a service finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Self

from django import forms
from django.forms.renderers import DjangoTemplates
from django.http import HttpRequest
from django.template.loader import get_template

from config.core.errors import NotFound, RequestRefused


class PageRenderer(DjangoTemplates):
    """Render fields with the project's own template, and widgets with Django's."""

    form_template_name = "_form.html"
    field_template_name = "_field.html"

    def get_template(self, template_name: str) -> object:
        if template_name in (self.form_template_name, self.field_template_name):
            return get_template(template_name)
        return super().get_template(template_name)


class PageForm(forms.Form):
    """A form of a page, which also shows what a service refuses at the field that the refusal names."""

    default_renderer = PageRenderer
    # Names that services use for a field, where the form uses another one.
    field_aliases: ClassVar[dict[str, str]] = {}

    @classmethod
    def from_request(cls, request: HttpRequest, **kwargs: object) -> Self:
        """Bind the form to what was posted; for any other method it is blank."""
        if request.method == "POST":
            return cls(request.POST, request.FILES, **kwargs)
        return cls(**kwargs)

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._refused_status = 400

    @property
    def status(self) -> int:
        """The HTTP status of a page that shows this form."""
        return self._refused_status if self.is_bound and self.errors else 200

    @contextmanager
    def refusals_as_errors(self) -> Iterator[None]:
        """Turn a refusal inside the block into an error of this form; after it, the page is shown again."""
        try:
            yield
        except NotFound:
            raise
        except RequestRefused as problem:
            self.add_refusal(problem)

    def add_refusal(self, problem: RequestRefused) -> None:
        details = problem.details.get("details")
        listed = details.get("errors") if isinstance(details, dict) else None
        field = str(problem.details.get("field", ""))
        self.add_problems(listed or [self.describe_refusal(problem)], field=field, status=problem.status)

    def describe_refusal(self, problem: RequestRefused) -> str:
        return problem.message

    def add_problems(self, texts: Iterable[str], *, field: str = "", status: int = 400) -> None:
        """Add errors at `field`, or at the field that a text names first, as in `cron: This is not …`."""
        self._refused_status = status
        for text in texts:
            name, _, rest = text.partition(": ")
            if rest and (named := self._find_field(name)):
                self.add_error(named, rest[0].upper() + rest[1:])
            else:
                self.add_error(self._find_field(field), text)

    def add_error(self, field: str | None, error: forms.ValidationError | str) -> None:  # type: ignore[override]
        """Add an error, and let the browser start at the first field that has one."""
        super().add_error(field, error)
        wrong = next((name for name in self.fields if name in self.errors), None)
        for name, form_field in self.fields.items():
            if name == wrong:
                form_field.widget.attrs["autofocus"] = True
            else:
                form_field.widget.attrs.pop("autofocus", None)

    def _find_field(self, name: str) -> str | None:
        own_name = self.field_aliases.get(name, name)
        return own_name if own_name in self.fields else None


class MultilineField(forms.CharField):
    """Text of several lines with plain line breaks; browsers send CR LF."""

    widget = forms.Textarea

    def to_python(self, value: object) -> str:
        return str(super().to_python(value) or "").replace("\r\n", "\n")


class TextListField(forms.Field):
    """Any number of values of one name, such as ids of ticked rows, as they were sent."""

    widget = forms.MultipleHiddenInput

    def to_python(self, value: object) -> list[str]:
        return [str(item) for item in value] if isinstance(value, list) else []


class ReasonField(forms.CharField):
    """A reason of staff for the audit log; every wrong length gets the same error."""

    def __init__(self, *, min_length: int = 1, max_length: int, **kwargs: object) -> None:
        problem = f"Enter a reason of {min_length} to {max_length:,} characters."
        messages = dict.fromkeys(("required", "min_length", "max_length"), problem)
        super().__init__(
            min_length=min_length,
            max_length=max_length,
            error_messages=messages,
            **kwargs,  # type: ignore[arg-type]
        )

"""Read the forms of a page as a browser and a screen reader do."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID_ELEMENTS = {"input", "meta", "link", "img", "br", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class _Page(HTMLParser):
    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID_ELEMENTS:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def parse_elements(html: str) -> list[Element]:
    page = _Page()
    page.feed(html)
    return page.elements


def check_error(response: object, name: str, message: str, *, kept: str | None = None) -> Element:
    """Check that the field is marked, focused and described by the message, and that it kept its value."""
    elements = parse_elements(response.content.decode())  # type: ignore[attr-defined]
    invalid = [
        element
        for element in elements
        if element.attributes.get("name") == name and element.attributes.get("aria-invalid") == "true"
    ]
    assert invalid, f"{name} is not marked as invalid"
    control = invalid[0]
    assert "autofocus" in control.attributes
    described = [
        element
        for element in elements
        if {"aria-describedby"} & set(element.attributes)
        and (element is control or element.tag == "fieldset")
    ]
    ids = {word for element in described for word in element.attributes["aria-describedby"].split()}
    texts = [element.text.strip() for element in elements if element.attributes.get("id") in ids]
    assert any(message in text for text in texts), texts
    if kept is not None:
        assert get_value(control, elements) == kept
    return control


def get_value(control: Element, elements: list[Element]) -> str:
    if control.tag == "textarea":
        return control.text.removeprefix("\n")
    if control.tag == "select":
        start = elements.index(control)
        options = (element for element in elements[start + 1 :] if element.tag == "option")
        return next(option.attributes["value"] for option in options if "selected" in option.attributes)
    return control.attributes.get("value", "")

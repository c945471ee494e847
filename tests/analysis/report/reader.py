"""A page as its elements: what tests read it with."""

from html.parser import HTMLParser


class Element:
    def __init__(self, name, attributes):
        self.name, self.attributes, self.children, self.texts = name, dict(attributes), [], []

    @property
    def text(self):
        """All text below the element."""
        return "".join(each if isinstance(each, str) else each.text for each in self.texts)

    def find(self, name, **attributes):
        """All elements below that have the name and the attributes."""
        found = []
        for child in self.children:
            if child.name == name and all(child.attributes.get(key) == value for key, value in attributes.items()):
                found.append(child)
            found += child.find(name, **attributes)
        return found

    def skeleton(self):
        """Names of elements and attributes in order, without any text: what markup in a text would change."""
        inner = [child.skeleton() for child in self.children]
        return (self.name, tuple(sorted(self.attributes)), tuple(inner))


class _Reader(HTMLParser):
    VOID = frozenset({"meta", "link", "br"})

    def __init__(self):
        super().__init__()
        self.root = Element("", ())
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        element = Element(tag, attrs)
        assert len(element.attributes) == len(attrs), f"{tag}: an attribute twice"
        self.open[-1].children.append(element)
        self.open[-1].texts.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().name == tag

    def handle_data(self, data):
        self.open[-1].texts.append(data)


def read(page):
    """Return the document; fails on an element that is not closed where it should be."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root

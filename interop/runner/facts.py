"""What squall's endpoint reports about its connections, in lines of `name=value` words."""

import re

LINE = re.compile(r"^squall: connection=\d+ (?P<event>\w+)(?P<words>( \w+=\S+)*)", re.MULTILINE)


class Facts:
    def __init__(self, output):
        self.events = []
        for line in LINE.finditer(output):
            words = dict(word.split("=", 1) for word in line["words"].split())
            self.events.append((line["event"], words))

    def count(self, event, **words):
        """How many events have these words."""
        return sum(
            one == event and all(said.get(name) == value for name, value in words.items())
            for one, said in self.events
        )

    def most(self, name):
        """The largest number that any connection reported at its end."""
        return max((int(said[name]) for event, said in self.events if event == "closed"), default=0)

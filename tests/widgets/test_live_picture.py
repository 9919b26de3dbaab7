"""The picture above a monitor, which two threads draw: the one that follows the run, and the one that awaits its end."""

import threading

from widgets.figures.static_figure import LivePicture


class Handle:
    def __init__(self):
        self.sent = []

    def update(self, data, metadata, raw):
        self.sent.append(data)


def test_a_picture_is_sent_before_another_thread_draws_a_later_one(monkeypatch):
    """Else the picture of an earlier step could be sent last, and would stay in the notebook."""
    picture = LivePicture([], type("Feed", (), {"series": []})(), threading.RLock())
    picture._handles = [Handle(), Handle()]
    free = []

    def drawn_while_another_thread_tries():
        other = threading.Thread(target=lambda: free.append(picture._sending.acquire(blocking=False)))
        other.start()
        other.join()
        return [("picture", {}), ("words", {})]

    monkeypatch.setattr(picture, "_outputs", drawn_while_another_thread_tries)
    picture.draw()
    assert free == [False]
    assert [handle.sent for handle in picture._handles] == [["picture"], ["words"]]

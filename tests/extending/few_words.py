"""An alarm: three records in a row have responses of less than two words."""

from aligner_lib.run_folder.alarms import Alarm, rule


@rule("train/words")
def few_words(start, now, limits):
    if now.all_beyond("train/words", lambda words: words < 2) is None:
        return None
    return Alarm("few_words", now.step, "Few words", "Responses are nearly empty.", "Lower `model.optim.lr`.")

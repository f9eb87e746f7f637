"""Who says what in a play: speeches from the texts of Project Gutenberg, without stage directions and headings.

A speech is a paragraph whose first line is the speaker's name ("HAMLET.", "Ham.", "1 Clown."); paragraphs without one
continue the last speech. A direction above a song names its singer ("[ARIEL sings]"), or nobody ("[SONG]"). Text before
the first name of a scene is nobody's (unsigned prologues and songs), and so is what several say at once ("ALL.",
"BOTH.", "Hor. and Mar."): it is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_START = re.compile(r"^ *(THE PROLOGUE|PROLOGUE|INDUCTION|ACT (I|1|FIRST)\b)", re.MULTILINE | re.IGNORECASE)
_NUMBER = r"([IVX]+|\d+|FIRST|SECOND|THIRD|FOURTH|FIFTH)\b"
_HEADING = re.compile(rf"(ACT|SCENE)\.? *{_NUMBER}.*", re.IGNORECASE)
# Alone in their paragraph; in A Midsummer Night's Dream "PROLOGUE" speaks.
_TITLE = re.compile(r"(THE )?(PROLOGUE|EPILOGUE|INDUCTION|END|SONG|DIRGE)\.?", re.IGNORECASE)
# Directions of a line of their own that say who sings what follows.
_SINGER = re.compile(r"^[ \t]*[\[{]([A-Z][A-Za-z]+)(?i: sings|'s song)\.?[\]}][ \t]*$", re.MULTILINE)
_SONG = re.compile(r"^[ \t]*[\[{](A )?song\b[^\[\]{}]*[\]}][ \t]*$", re.MULTILINE | re.IGNORECASE)
# Within a paragraph. The printers mixed up the brackets, nested and forgot them.
_DIRECTION = re.compile(r" *[\[{](?:[^\[\]{}\n]|\n(?!\s*\n))*[\]}]")
_UNCLOSED = re.compile(r" *[\[{].*", re.DOTALL)
_BARE_DIRECTION = re.compile(r"(Flourish\. |Dead March\. |Alarum\. )?enter,? ", re.IGNORECASE)
_BARE_EXIT = re.compile(r"(?<=[.!?])\s*(Exit|Exeunt)( [A-Z]\w+)?$")
_WORD = r"(?:[A-Z][A-Za-z'-]*|\d|of|the|and|de|to|&c?|&C)"
_NAME = re.compile(rf"({_WORD}(?:[ .,]+{_WORD})*)[ .:,]*(--)?")
_INLINE = re.compile(r"([A-Z][A-Z' -]+)\.\s+(?=\S)")
_GROUP = re.compile(r"(ALL|BOTH|SOME|CITIZENS|SENATORS|SOLDIERS|LORDS|SERVANTS|PEOPLE)\b|.*(&|,| AND )")
_NOBODY = {"ALL", "SONG", "II", "III", "IV", "DUMB SHOW", "THE ORDER OF THE CORONATION", "TROILUS AND CRESSIDA"}

# Abbreviations, misprints, and roles that are renamed as they rise, by play: what stands there, and who it is.
_SAME: dict[str, str] = {
    "antony_and_cleopatra": "THYMUS=Thyreus",
    "coriolanus": "MARCIUS=Coriolanus, TITUS LARTIUS=Lartius",
    "hamlet": "HAM=Hamlet, HOR=Horatio, POL=Polonius, LAER=Laertes, OPH=Ophelia, ROS=Rosencrantz, GUIL=Guildenstern, "
    "MAR=Marcellus, OSR=Osric, BER=Bernardo, REY=Reynaldo, FRAN=Francisco, CAPT=Captain, I PLAY=First Player, "
    "I PLAYER=First Player, P. QUEEN=Player Queen, P. KING=Player King, FORT=Fortinbras, FOR=Fortinbras, "
    "GENT=Gentleman, MESS=Messenger, VOLT=Voltimand, PRO=Prologue, LUC=Lucianus, 1 CLOWN=First Clown, "
    "2 CLOWN=Second Clown, 1 PRIEST=First Priest, I SAILOR=Sailor",
    "henry_iv_part_1": "FAL=Falstaff, HOT=Hotspur, WOR=Worcester, HOST=Hostess, GLEND=Glendower, DOUG=Douglas, "
    "GADS=Gadshill, BARD=Bardolph, FRAN=Francis, VER=Vernon, MORT=Mortimer, NORTH=Northumberland, "
    "WEST=Westmoreland, LADY=Lady Percy, LADY P=Lady Percy, 1. CAR=First Carrier, 2. CAR=Second Carrier, "
    "CHAM=Chamberlain, MESS=Messenger, SHER=Sheriff, ARCH=Archbishop, SIR M=Sir Michael, LAN=Lancaster, "
    "SERV=Servant, OST=Ostler, VINT=Vintner",
    "henry_v": "KING=King Henry",
    "henry_vi_part_1": "PLANTAGENET=York, CARDINAL=Winchester",
    "henry_vi_part_2": "KING HENRY=King",
    "henry_vi_part_3": "EDWARD=King Edward, RICHARD=Gloster, GEORGE=Clarence, LADY GREY=Queen Elizabeth, "
    "LEWIS=King Lewis",
    "henry_viii": "KATHERINE=Queen Katherine",
    "lear": "GLOU=Gloster, EDG=Edgar, EDM=Edmund, REG=Regan, ALB=Albany, GON=Goneril, CORN=Cornwall, OSW=Oswald, "
    "GENT=Gentleman, COR=Cordelia, MESS=Messenger, PHYS=Physician, DOCT=Physician, BUR=Burgundy, CUR=Curan, "
    "FIRST SERV=First Servant, SECOND SERV=Second Servant, THIRD SERV=Third Servant, HER=Herald, CAPT=Captain, "
    "OFF=Officer",
    "merchant_of_venice": "DUKE OF VENICE=Duke",
    "much_ado_about_nothing": "BALTHASAR=Balthazar",
    "midsummer_nights_dream": "MOON=Moonshine",
    "pericles": "PERACLES=Pericles, HELICANE=Helicanus, HELCANUS=Helicanus",
    "richard_ii": "HENRY PERCY=Percy",
    "richard_iii": "GLOSTER=King Richard",
    "romeo_and_juliet": "FRIAR=Friar Lawrence, CHOR=Chorus",
    "timon_of_athens": "LUCULLIUS=Lucullus",
    "tragedy_of_titus_andronicus": "BOY=Young Lucius",
    "troilus_and_cressida": "ANDARUS=Pandarus, AGAME=Agamemnon",
    "twelfth_night": "AGUE-CHEEK=Sir Andrew",
}
# Names that are two people's, by play: the name, the act (a digit), and who it is there.
_BY_ACT: dict[str, str] = {
    "henry_iv_part_2": "KING 5=Prince",
    "richard_ii": "DUCHESS 1=Duchess Of Gloucester, DUCHESS 5=Duchess Of York",
}
_ACTS = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "FIRST": 1, "SECOND": 2, "THIRD": 3, "FOURTH": 4, "FIFTH": 5}


def roles(text: str, play: str = "") -> dict[str, str]:
    """What each role of a play says, line by line, in the order of the first words. play: its name, as in `_SAME`."""
    found: dict[str, list[str]] = {}
    for act, speaker, lines in speeches(text):
        role = _role(speaker, play, act)
        if role:
            found.setdefault(role, []).extend(lines)
    return {role: "\n".join(lines) for role, lines in found.items() if lines}


def speeches(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """(the act; the speaker as printed, in capitals; lines), for the whole play."""
    paragraphs = list(_paragraphs(text))
    known = _speakers(paragraphs) | _NOBODY
    act, speaker = 0, ""
    for lines in paragraphs:
        act = _act(lines[0]) or act
        if _HEADING.fullmatch(lines[0]) or (len(lines) == 1 and _TITLE.fullmatch(lines[0])):
            speaker = ""
            continue
        if _BARE_DIRECTION.match(lines[0]):
            continue
        spoken: list[str] = []
        for number, line in enumerate(lines):
            name, rest = _named(line, known, number == 0)
            if name:
                if speaker and spoken:
                    yield act, speaker, spoken
                speaker, spoken = name, [rest] * bool(rest)
            else:
                spoken.append(line)
        if speaker and spoken:
            yield act, speaker, spoken


def _act(line: str) -> int:
    """The act that a heading begins; 0 if it is none."""
    found = _HEADING.fullmatch(line)
    if not found or found[1].upper() != "ACT":
        return 0
    return _ACTS.get(found[2].upper()) or (int(found[2]) if found[2].isdigit() else 0)


def _paragraphs(text: str) -> Iterator[list[str]]:
    start = _START.search(text)
    for paragraph in re.split(r"\n\s*\n", _without_directions(text[start.start() :] if start else text)):
        lines = [_BARE_EXIT.sub("", " ".join(line.split())) for line in paragraph.splitlines()]
        said = [line for line in lines if line.strip(".") and "Re-enter" not in line]
        if said:
            yield said


def _without_directions(text: str) -> str:
    text = _SONG.sub("SONG.", _SINGER.sub(lambda found: f"{found[1].upper()}.", text))
    shorter = _DIRECTION.sub("", text)
    while shorter != text:  # those that were nested
        text, shorter = shorter, _DIRECTION.sub("", shorter)
    return "\n\n".join(map(_without_forgotten, re.split(r"\n[ \t]*\n", shorter)))


def _without_forgotten(paragraph: str) -> str:
    """A paragraph up to a bracket that nothing closes, and from behind the last one that nothing opens."""
    opened = _UNCLOSED.sub("", paragraph)
    return opened[max(opened.rfind("]"), opened.rfind("}")) + 1 :]


def _speakers(paragraphs: Iterable[list[str]]) -> set[str]:
    """The names that stand alone above a speech. In most plays they are in capitals, in a few all are mixed."""
    names: Counter[str] = Counter()
    for lines in paragraphs:
        match = _NAME.fullmatch(lines[0])
        if match and (len(lines) > 1 or match[1].isupper()):
            names[match[1]] += 1
    capitals = {name for name in names if name.isupper()}
    if sum(names[name] for name in capitals) > names.total() / 2:
        return capitals
    return {name.upper() for name in names}


def _named(line: str, known: set[str], first: bool) -> tuple[str, str]:
    """The speaker whom a line names, and what it says besides; no speaker if it is a line of speech."""
    match = _NAME.fullmatch(line)
    if match and match[1].upper() in known and (first or match[1].isupper()):
        return match[1].upper(), ""
    match = _INLINE.match(line)
    if match and match[1] in known:
        return match[1], line[match.end() :]
    return "", ""


def _role(speaker: str, play: str, act: int = 0) -> str:
    """The name of the one who speaks, or nothing if that is not one."""
    if _GROUP.match(speaker) or speaker in _NOBODY or (speaker == "CHORUS" and play == "midsummer_nights_dream"):
        return ""
    same = dict(pair.split("=") for pair in _SAME.get(play, "").split(", ") if pair)
    by_act = dict(pair.split("=") for pair in _BY_ACT.get(play, "").split(", ") if pair)
    return (
        by_act.get(f"{speaker} {act}") or same.get(speaker) or " ".join(word.capitalize() for word in speaker.split())
    )

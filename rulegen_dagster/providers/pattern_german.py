"""The sentence patterns of German policies: limits, papers, approvals, refusals, deadlines and rates.

A German verb stands around what it governs ("werden bis zu 50 Euro erstattet"). Such a pattern reads its groups `part`
only; what lies between them has to be read by another pattern, or the clause is left to a person. A gap is bounded and
never crosses a full stop.
"""

import re
from functools import lru_cache

from rulegen_dagster.providers.pattern_language import Language, sentence_pattern
from rulegen_dagster.providers.pattern_model import Comparator, Demand
from rulegen_dagster.providers.pattern_quantities import GERMAN_NUMBERS

_GAP = r"[^.;:]{0,160}?"
_DET = r"(?:de[rsmn] |die |das |eine[rsmn]? |ein |ihre[rsmn]? |jeweilige[rn]? )*"
_PAID = r"(?:erstattet|übernommen|bezahlt|gezahlt|vergütet|ersetzt)"
_DONE = r"(?:erstattet|übernommen|bezahlt|abgerechnet|geltend gemacht|gebucht|gekauft|genutzt|eingereicht|genommen)"
_FIT = r"(?:erstattungsfähig|erstattbar|zulässig|erlaubt|gestattet)"
_PAPER = rf"{_DET}(?:originale[rnms]? |gültige[rnms]? |detaillierte[rnms]? )*<PAPER>"
_NEEDED = r"(?:erforderlich|notwendig|nötig|vorzulegen|beizufügen|einzureichen)"
_CONSENT = (
    r"(?:vorherigen? |schriftlichen? |ausdrücklichen? |elektronischen? )*(?:genehmigung|zustimmung"
    r"|freigabe|einwilligung)"
)
_BY = rf"(?:durch |von |vom )?{_DET}"
_IN_ADVANCE = r"(?: vorab| vorher| im voraus| zuvor| schriftlich)*"
_PERSON = r"(?:beschäftigte|mitarbeitende|reisende|dienstreisende|sie)"
_MUST = r"m(?:uss|uß|üssen)|soll(?:en|te|ten)?"
_DAYS = r"(?P<days><DAYS>|<TIME>)"
_AFTER = r"(?:nach|ab|seit) (?:(?:dem |der )?datum )?(?:de[rsm] )?{event}"
_BEFORE = r"vor (?:de[rm] )?{event}"


@lru_cache(maxsize=8)
def _comparators(number: str) -> tuple[tuple[Comparator, re.Pattern[str]], ...]:
    """Return how a number is compared; the first that matches decides: "nicht mehr als" never reads as "mehr als"."""
    templates = (
        (
            Comparator.AT_MOST,
            (
                rf"(?P<part>d(?:arf|ürfen)|soll(?:en|te|ten)?|k(?:ann|önnen))\s{_GAP}(?P<part><N>)\s{_GAP}"
                r"(?P<part>nicht (?:überschreiten|übersteigen))"
                rf"|(?P<part>wird|werden|ist|sind)\s{_GAP}(?P<part>auf (?:maximal |höchstens )?<N>)\s{_GAP}"
                r"(?P<part>begrenzt|beschränkt|limitiert)"
                r"|(?P<part>(?:obergrenze|höchstgrenze|höchstbetrag|höchstsatz|limit|grenze)(?: für (?:die |das |den "
                r")?<VALUE>)?"
                rf" (?:beträgt|liegt bei|ist))\s{_GAP}(?P<part><N>)"
                r"|(?:in höhe von )?(?:bis zu|bis maximal|bis höchstens|bis zur höhe von)"
                r"(?: (?:einem betrag|einer höhe|einem höchstbetrag|insgesamt|maximal|höchstens)(?: von)?)? <N>"
                r"|(?:in höhe von )?(?:höchstens|maximal|nicht mehr als|bis) <N>"
            ),
        ),
        (
            Comparator.AT_LEAST,
            (
                r"(?:von )?(?:ab (?:eine[mr] (?:betrag|wert|höhe|dauer) von )?|mindestens )<N>|(?:von )?<N> (?:oder"
                r"|und) mehr"
            ),
        ),
        (
            Comparator.ABOVE,
            (
                r"(?:von |im wert von )?(?:über|mehr als|oberhalb von|länger als) <N>(?: kostet| kosten)?"
                r"|<N>(?: <PERIOD>)? (?:übersteigt|übersteigen|überschreitet|überschreiten)"
            ),
        ),
        (Comparator.BELOW, r"(?:von )?(?:unter|weniger als|unterhalb von) <N>"),
    )
    return tuple((comparator, sentence_pattern(template.replace("<N>", number))) for comparator, template in templates)


_OWN_WORDS = (
    "der das den dem ein eine einen einem einer eines ist sind wird werden muss muß müssen kann können soll sollen "
    "sollte sollten darf dürfen nicht kein keine keinen und oder für von vom zur zum bei mit nach vor über auf aus pro "
    "je bis sowie wenn falls sofern außer nur höchstens maximal tag tage tagen nacht monat jahr kosten ausgaben "
    "auslagen erstattet beleg belege genehmigung urlaub anträge antrag"
)
_FILLER_WORDS = (
    "der die das den dem des ein eine einen einem einer eines und für von vom zu zum zur bei im in am "
    "an auf mit pro je "
    "ist sind wird werden muss muß müssen kann können soll sollen sollte sollten darf dürfen alle allen "
    "aller jede jeder "
    "jedes jeden jedem sämtliche einzelne einzelnen kosten ausgabe ausgaben auslage auslagen aufwendung aufwendungen "
    "anschaffung anschaffungen betrag beträge höhe preis preise gebühr gebühren antrag anträge abrechnung abrechnungen "
    "erstattung wert beschäftigte beschäftigten mitarbeiter mitarbeiterinnen mitarbeitende mitarbeitenden "
    "reisende reisenden "
    "unternehmen firma arbeitgeber wir sie ihr ihre ihren folgende folgenden gilt gelten wenn falls auch stets immer "
    "urlaub urlaubsantrag urlaubsanträge"
)
_EXCEPTION_FILLERS = (
    "der die das den dem des ein eine einen einem einer eines für von vom zu bei im in am an ist sind es sie er dies "
    "wenn fall fälle fällen dass daß oder und ausgabe reise"
)

GERMAN = Language(
    # Words that English has too ("die", "in", "an", "was", "will", "hat", "also") tell nothing.
    own_words=frozenset(_OWN_WORDS.split()),
    numbers=GERMAN_NUMBERS,
    ending=r"(?:en|es|ern|er|e|n|s)?",
    comparators=_comparators,
    count_limits=sentence_pattern(r"(?:hat|haben) anspruch auf (?P<number><DAYS>|<HOURS>)"),
    stay_below=sentence_pattern(
        rf"(?P<part>{_MUST})\s{_GAP}(?P<part>(?P<below>unter|unterhalb von) (?P<number><MONEY>))\s{_GAP}"
        r"(?P<part>bleiben|liegen)"
    ),
    share=sentence_pattern(
        r"(?:zu |bis zu |in höhe von |höchstens |maximal )?(?P<percent><PERCENT>) "
        r"(?:der (?:nachgewiesenen |tatsächlichen |entstandenen )?(?:kosten|ausgaben|auslagen|aufwendungen|gebühren)"
        r"(?: für| von)?|des (?:preises|betrags|betrages)|(?:der|des) (?=<VALUE>))"
    ),
    rate=(
        r"(?:beträgt |betragen )?(?:mit |zu |in höhe von )?(?:einem (?:satz|betrag) von |einer pauschale von "
        r"|pauschal )?"
        r"(?P<money><MONEY>) (?:je|pro|für jede[ns]?) (?P<unit>{units})(?: strecke| wegstrecke)?"
    ),
    flat_rate=sentence_pattern(
        r"(?:beträgt |mit |in höhe von )?(?:einem satz von |einer pauschale von |pauschal )(?P<money><MONEY>) "
        r"(?P<period><PERIOD>)"
    ),
    actions={
        "eingereicht": (
            r"(?:(?:eingereicht|vorgelegt|abgerechnet|geltend gemacht|beantragt|gestellt) (?:werden|sein)"
            r"|einzureichen|vorzulegen|abzurechnen|geltend zu machen|zu beantragen)"
        ),
        "gebucht": r"(?:(?:gebucht|reserviert|gekauft) werden|zu buchen|zu reservieren)",
        "beantragt": (
            r"(?:(?:beantragt|eingereicht|angemeldet|gestellt) werden|zu beantragen|einzureichen|anzumelden|zu stellen)"
        ),
    },
    in_time=(
        rf"(?P<part>(?:innerhalb von|innerhalb|binnen|(?:bis )?spätestens) {_DAYS} {_AFTER})\s{_GAP}"
        r"(?P<part>{action})"
    ),
    ahead=rf"(?P<part>(?:mindestens|spätestens|wenigstens) {_DAYS} {_BEFORE})\s{_GAP}(?P<part>{{action}})",
    too_late=rf"(?P<part>(?:später als|mehr als) {_DAYS} {_AFTER})\s{_GAP}(?P<part>{{action}})",
    not_ahead=rf"(?P<part>weniger als {_DAYS} {_BEFORE})\s{_GAP}(?P<part>{{action}})",
    older_than=sentence_pattern(rf"(?:die )?älter als {_DAYS}(?: sind| ist)?"),
    articles=("der", r"(?:der|des|dem|einer)"),
    approval=sentence_pattern(
        rf"bed(?:arf|ürfen) (?:stets |immer )?(?:der |einer )?{_CONSENT} {_BY}(?P<approver><APPROVER>)"
        rf"|(?P<part>{_MUST})\s{_GAP}(?P<part>(?:(?:vorab|vorher|im voraus|zuvor|schriftlich) )*(?:durch|von"
        rf"|vom) {_DET}"
        rf"(?P<approver><APPROVER>){_IN_ADVANCE} (?:genehmigt|freigegeben|bewilligt) werden)"
        rf"|(?P<part>ist|sind)\s{_GAP}(?P<part>(?:(?:vorab|vorher|im voraus|zuvor|schriftlich) )*(?:durch|von"
        rf"|vom) {_DET}"
        rf"(?P<approver><APPROVER>){_IN_ADVANCE} (?:zu genehmigen|freizugeben))"
        rf"|(?P<part>ist|sind)\s{_GAP}(?P<part>(?:die |eine ){_CONSENT} {_BY}(?P<approver><APPROVER>) "
        r"(?:erforderlich|notwendig|nötig|einzuholen))"
        rf"|(?P<part>{_DET}(?P<approver><APPROVER>) (?:{_MUST}))\s{_GAP}(?P<part>genehmigen)"
    ),
    approval_by_nobody_named=sentence_pattern(
        rf"bed(?:arf|ürfen) (?:stets |immer )?(?:der |einer )?{_CONSENT}|genehmigungspflichtig"
        rf"|(?P<part>{_MUST})\s{_GAP}(?P<part>(?:genehmigt|freigegeben) werden)"
        rf"|(?P<part>ist|sind)\s{_GAP}(?P<part>(?:zu genehmigen|(?:die |eine ){_CONSENT} {_NEEDED}))"
    ),
    no_paper=sentence_pattern(
        rf"(?P<part>(?:ist|sind) keine? <PAPER>)\s{_GAP}(?P<part>{_NEEDED})"
        rf"|(?P<part>keine? <PAPER> (?:ist|sind))\s{_GAP}(?P<part>{_NEEDED})"
        rf"|(?P<part>{_PAPER} (?:ist|sind))\s{_GAP}(?P<part>nicht {_NEEDED})"
        rf"|(?P<part>(?:ist|sind) {_PAPER})\s{_GAP}(?P<part>nicht {_NEEDED})"
    ),
    demands=(
        (
            Demand.RECEIPT,
            sentence_pattern(
                rf"(?P<part>(?:ist|sind)(?: stets| immer| nur)? {_PAPER})\s{_GAP}(?P<part>{_NEEDED})"
                rf"|(?P<part>{_PAPER} (?:ist|sind)(?: stets| immer| nur)?)\s{_GAP}(?P<part>{_NEEDED})"
                rf"|(?:erforder[nt]|benötig(?:t|en)|brauch(?:t|en)) (?:stets |immer )?{_PAPER}"
                rf"|(?P<part>{_MUST})\s{_GAP}(?P<part>(?:durch|mit) {_PAPER} (?:belegt|nachgewiesen) werden)"
                rf"|(?P<part>ist|sind)\s{_GAP}(?P<part>(?:durch|mit) {_PAPER} (?:zu belegen|nachzuweisen))"
                rf"|(?P<part>(?:{_MUST}) {_PAPER})\s{_GAP}(?P<part>(?:vorgelegt|beigefügt|eingereicht) werden)"
                rf"|(?P<part>{_PERSON} m(?:uss|üssen))\s{_GAP}(?P<part>{_PAPER} (?:vorlegen|beifügen|einreichen))"
            ),
        ),
        (
            Demand.REFUSAL,
            sentence_pattern(
                rf"(?P<part>d(?:arf|ürfen)|k(?:ann|önnen))\s{_GAP}(?P<part>nicht {_DONE} werden)"
                rf"|(?P<part>wird|werden)\s{_GAP}(?P<part>nicht {_PAID})|nicht {_PAID} (?:wird|werden)"
                rf"|(?P<part>ist|sind)\s{_GAP}"
                rf"(?P<part>nicht {_FIT}|unzulässig|untersagt|verboten|(?:von der erstattung )?ausgeschlossen)"
                rf"|nicht {_FIT} (?:ist|sind)"
                r"|(?:wir|(?:das unternehmen|die firma|der arbeitgeber)) (?:erstatten|erstattet|übernehmen"
                r"|übernimmt) keine"
                r"|von der erstattung (?:sind )?ausgeschlossen(?: sind)?"
                rf"|(?P<part>(?:eine )?erstattung (?:von|der|des|für))\s{_GAP}(?P<part>erfolgt nicht)"
                r"|(?P<part>(?:wird|werden) keine (?:kosten|ausgaben|aufwendungen))\s(?P<part>"
                rf"{_PAID})|(?P<part>für)\s{_GAP}(?P<part>(?:erfolgt|gibt es) keine erstattung)"
            ),
        ),
        (
            Demand.PERMISSION,
            sentence_pattern(
                rf"(?P<part>k(?:ann|önnen)|d(?:arf|ürfen))\s{_GAP}(?P<part>{_DONE} werden)"
                rf"|(?P<part>wird|werden)\s{_GAP}(?P<part>(?:vollständig |in voller höhe )?{_PAID})"
                rf"|(?P<part>ist|sind)\s{_GAP}(?P<part>{_FIT})"
                r"|(?:wir|das unternehmen|die firma|der arbeitgeber) (?:erstatten|erstattet|übernehmen|übernimmt)"
                rf"|(?P<part>(?:beschäftigte|mitarbeitende|sie) k(?:ann|önnen))\s{_GAP}(?P<part>nehmen)"
            ),
        ),
    ),
    without_paper=sentence_pattern(rf"ohne {_PAPER}"),
    # Only "länger als": the fact counts started hours, so that "mindestens 8 Stunden" would also hold for 7 and a half.
    longer_flight=sentence_pattern(
        r"(?:(?:der |die |das )?(?:<VALUE>|flugzeit|flugdauer) )?(?:dauert |beträgt |von )?"
        r"(?:länger als|mehr als|über) (?P<hours><HOURS>)(?: dauert| beträgt)?"
    ),
    inherited_limit=sentence_pattern(
        r"höchst(?:betrag|beträge|grenzen?|satz|sätze)|obergrenzen?|limits?|maximal|bis zu"
    ),
    exception_word=sentence_pattern(
        r"es sei denn,?(?: (?:dass|daß))?|außer(?: wenn| bei| für| im| in)?|ausgenommen|mit ausnahme (?:von|der|des)"
        r"|sofern nicht|soweit nicht|wenn nicht|abgesehen von"
    ),
    approved=sentence_pattern(
        rf"(?:sie |er |es |dies )?(?:(?:ist|sind|wurde|wurden) )?(?:(?:durch|von|vom) ){_DET}(?P<approver><APPROVER>)"
        rf"{_IN_ADVANCE} genehmigt(?: worden)?(?: ist| sind| wurden?)?"
        rf"|{_DET}(?P<approver><APPROVER>)(?: ha(?:t|ben))?(?: sie| ihn| es| dies| dem)?{_IN_ADVANCE} "
        rf"(?:genehmigt|zugestimmt)"
        r"(?: ha(?:t|ben))?"
        rf"|(?:mit )?{_DET}{_CONSENT} {_BY}(?P<approver><APPROVER>)"
    ),
    ignored_before_value=sentence_pattern(
        r"(?:(?:das |die )?(?:benutzen|benutzung|nutzen|nutzung) |(?:fahrten|reisen) mit )(?:de[rsnm] "
        r"|eine[srnm]? |von )?"
        r"(?=<VALUE>)"
    ),
    polite=sentence_pattern(r"es(?= (?:werden|wird))|bitte(?: beachten sie)?(?:, (?:dass|daß))?|hinweis"),
    should=sentence_pattern(r"soll(?:en|te|ten)?"),
    may=sentence_pattern(rf"(?:k(?:ann|önnen)|d(?:arf|ürfen))\s{_GAP}werden"),
    whole_claim=sentence_pattern(r"anträge|antrag|(?:reisekosten)?abrechnung(?:en)?"),
    everything=sentence_pattern(
        r"(?:alle[nr]?|jede[rsnm]?|sämtliche|eine?|einzelne) (?:einzelne[nr]? )?"
        r"(?:ausgaben?|auslagen?|aufwendung(?:en)?|kosten|anschaffung(?:en)?|abrechnung(?:en)?|antrag|anträge)"
        r"|ausgaben|auslagen|aufwendungen|anschaffungen|abrechnungen|anträge|urlaub|urlaubs(?:antrag|anträge)"
    ),
    connectors=sentence_pattern(
        r"(?:und|oder|sowie|alle|der|die|das|den|dem|des|von|für|kosten|ausgaben|gebühren|einen?|eine[rsm]?)"
    ),
    joining_words=frozenset({"und", "oder", "sowie"}),
    conditional=sentence_pattern(r"wenn|falls"),
    narrowing=sentence_pattern(
        r"nicht|kein|keine|keinen|keiner|nie|nur|erst|während|bevor|nachdem|bis|innerhalb|außerhalb|ohne|außer|soweit"
        r"|sofern|soll|sonst|zwischen|und|oder|als|aber|jedoch|mindestens|höchstens|mehr|weniger|grundsätzlich|ab|vor|nach"
    ),
    fillers=frozenset(_FILLER_WORDS.split()),
    exception_fillers=frozenset(_EXCEPTION_FILLERS.split()),
)

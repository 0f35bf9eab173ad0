"""The settings of a running broker, for administrators.

    HMQ_SETTINGS     29031  no fields
        response  code 0; body JSON {name: ``ShownSetting``}, in the order of the options of `halfmq serve`
    HMQ_SET_SETTING  29037  ext ``setting``, ``operator``, ``reason``; ``value``: JSON, or ``unset``: true for the configuration's;
                            ``preview``: true changes nothing, and gets the response that the change would get
        response  code 0, ext ``warning`` if the value has an effect that may not be meant; 1: ``unset``, and it is as the configuration
                  says; 2: no space; 29: no such setting or value, or it is fixed

RocketMQ responds with code 3. Pure functions.
"""

from typing import Final

from halfmq.model.shown_settings import ShownSetting
from halfmq.model.text_fields import Fields, NotEmpty
from halfmq.wire.remoting.fields import JsonBody

#: Response body of HMQ_SETTINGS.
SETTINGS: Final = JsonBody(dict[str, ShownSetting], "a response to HMQ_SETTINGS is")


#: Of a response to HMQ_SET_SETTING: text for the administrator.
EXT_WARNING: Final = "warning"


class SetSettingFields(Fields, gc=False):
    """HMQ_SET_SETTING."""

    setting: NotEmpty
    value: str = ""
    unset: bool = False
    operator: str = ""
    reason: str = ""
    preview: bool = False

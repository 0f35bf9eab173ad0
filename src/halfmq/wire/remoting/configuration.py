"""The settings of a running broker, for administrators.

    HMQ_SETTINGS  29031  no fields
        response  code 0; body JSON {name: ``ShownSetting``}, in the order of the options of `halfmq serve`

RocketMQ responds with code 3. Pure functions.
"""

from typing import Final

from halfmq.model.shown_settings import ShownSetting
from halfmq.wire.remoting.fields import JsonBody

#: Response body of HMQ_SETTINGS.
SETTINGS: Final = JsonBody(dict[str, ShownSetting], "a response to HMQ_SETTINGS is")

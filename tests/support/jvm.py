"""Options of the JVMs that tests start."""

from typing import Final

#: Of one that lives for seconds or minutes: the second compiler and the parallel collector cost more CPU there than they save, and so does
#: a check of each class of published jars, which takes a fifth of a start of Spark. Never of a peer that is measured.
QUICK: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)

"""The jobs of ``halfmq pipeline``: each is a function here, a command (``cli/pipeline.py``), and can be given to spark-submit.

ingest.py         topics to tables: everything (bronze), parsed (silver), and what could not be parsed (quarantine)
transactions.py   one row for each transaction
reconcile.py      business tables against messages: database_rows.py (a database to Parquet), differences.py (the comparison in Spark),
                  reconciliation.py (the result: JSON, and for people)
archive.py        topics to a table, for longer than retention
replay.py         archive or topic to topic
report.py         one HTML page: report_figures.py (from Spark), report_plots.py (SVG), report.html.j2

settings.py       a job's settings: a struct, from a TOML file and from options of the command line
session.py        the Spark session of a job
source.py         where a job reads: settings, and options of the source
table_job.py      jobs that write topics into tables        json_rows.py   bodies to typed rows
tables.py         tables that contain each batch once       files.py       Parquet files, written by tasks
stream.py         runs a query: progress, an orderly end on SIGTERM
inputs.py         tables and topics that a job reads whole
state.py          what a job remembers, and the lock of its directory
"""

"""The jobs of ``halfmq pipeline``: each is a function here, a command (``cli/pipeline.py``), and can be given to spark-submit.

settings.py   a job's settings: a struct, from a TOML file and from options of the command line
session.py    the Spark session of a job
stream.py     runs a streaming query: progress, an orderly end on SIGTERM
tables.py     tables that contain each batch of a query exactly once: Parquet directories, or Delta
files.py      rows to Parquet files, written by the tasks with pyarrow

ingest.py     topics to tables: everything (bronze), parsed (silver), and what could not be parsed (quarantine)
transactions.py   one row for each transaction
reconcile.py  business tables against messages: database_rows.py (a database to Parquet), differences.py (the comparison in Spark),
              reconciliation.py (the result: JSON, and for people)
archive.py    topics to tables, for longer than retention
replay.py     archive or topic to topic
report.py     one HTML page: report_figures.py (from Spark), report_plots.py (SVG), report.html.j2
inputs.py     tables and topics that a job reads whole
"""

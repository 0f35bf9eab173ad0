"""The jobs of ``halfmq pipeline``: each is a module with ``Settings`` and ``run``, a command (``cli/pipeline.py``), and can be given to
spark-submit.

reconcile: database_rows.py copies the table, differences.py compares, reconciliation.py is the result. report: report_figures.py,
report_plots.py, report.html.j2. ingest and archive: table_job.py. Common: settings.py, session.py, source.py, tables.py, stream.py,
state.py.
"""

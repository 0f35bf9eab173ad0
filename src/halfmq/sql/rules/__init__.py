"""Rules about an application's database that know no database library: what a row means, who may change it, what an error proves.

They do no I/O and read no clock. Adapters execute what they decide: ``halfmq.sql.alchemy`` with SQLAlchemy. ``product`` is the database
system in the words of SQLAlchemy's dialects: ``sqlite``, ``postgresql``, ``mysql``, ``mariadb``, ``mssql``, ``oracle``.
"""

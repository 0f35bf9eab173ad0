"""Rules about an application's database that know no database library: what a row means, who may change it, what an error proves.

Adapters execute what these modules decide: ``halfmq.sql.alchemy`` with SQLAlchemy.
"""

"""The main job: real baskets, through a database and the broker, into Spark tables, under kill -9."""

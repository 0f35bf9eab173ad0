from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("note", models.CharField(max_length=40, unique=True)),
            ],
        )
    ]

from django.db import models


class Order(models.Model):
    note = models.CharField(max_length=40, unique=True)

from django.urls import path

from tests.django.shop import views

urlpatterns = [path("orders", views.orders), path("direct", views.direct)]

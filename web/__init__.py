"""What is shown: the HTTP API, over the scheduler and the views. Knows neither Celery nor SQL."""

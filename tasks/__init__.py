"""What is executed: the only package that imports Celery."""

"""What worker and ingest processes do for operators besides: they count, sample and broadcast."""

"""Reading what users write: cases now, whole suites next."""

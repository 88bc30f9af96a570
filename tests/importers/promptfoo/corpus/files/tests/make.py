raise SystemExit("an import must not run this")

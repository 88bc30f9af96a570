from gradeline.cli import main

main()

throw new Error("an import must not run this");

global.early = 1

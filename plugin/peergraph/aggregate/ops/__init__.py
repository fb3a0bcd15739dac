"""Operations over an `EdgeMatrix`, with checks of their operands and with gradients."""

"""Operations over a `CsrMatrix`, with checks of their operands and with gradients."""

"""The colours of plots: Okabe and Ito's palette, distinct under the common colour blindnesses, as in the figures."""

# On white; the order in which energy groups, and curves of one run, take them.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6FBF", "#444444")
# Between those for white and for black pages: for pictures that do not know what they are shown on.
MIDDLE = ("#2E8FCC", "#E3702B", "#1BAF87", "#D58AB5", "#DDA024", "#6CBFEE", "#9C83CF", "#888C92")

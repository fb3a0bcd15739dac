"""Tables with rows split over machines, and the exchange that brings rows of other machines."""

"""Figures and the page. The only room that plots; needs the extra `report`, never torch."""

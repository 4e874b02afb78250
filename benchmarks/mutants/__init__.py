"""Rules of the product, each broken once on purpose: what notices?"""

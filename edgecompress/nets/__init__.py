"""Loading models, finding and replacing their layers, counting what they cost, artefacts in and out."""
